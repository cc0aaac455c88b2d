"""With `--parts mine` a demo runs what the learner has built, says so, and notices a mistake."""

from typing import NamedTuple

import pytest
from together import keep_courses, keep_mine, refused, runs

GPT = {"model": "1x16x2", "steps": 3}
TP = {"model": "2x16x4", "steps": 3, "batch": 2, "sequence": 8, "library": False}
PAIR = "from scratch, with your Copy, Sum, ColumnParallelLinear, RowParallelLinear"
BY_HAND = "DDP by hand, with your DDP"
HALVES = ", ring_reduce_scatter, ring_all_gather"


class Case(NamedTuple):
    """A demo, the files that are kept, what the report credits, and one kept file's mistake.

    A mistake is added at the end of a file; or it is what to replace in a build of another form.
    """

    demo: str
    files: list[str]  # the last of them has the mistake
    credit: list[str]
    mistake: str | tuple[str, str]
    refusal: str
    options: dict[str, object] = GPT
    ranks: int = 2


TWICE = """right = {name}
def {name}(*given):
    return 2 * right(*given)
"""
CASES = {
    "accumulate_ddp": Case(
        "ddp",
        ["accumulation"],
        [", with your accumulate_ddp"],
        "right = accumulate_ddp\n"
        "def accumulate_ddp(model, window, no_sync=True):\n"
        "    loss = right(model, window, no_sync)\n"
        "    for p in model.parameters(): p.grad *= 2\n"
        "    return loss\n",
        "the gradient differs",
    ),
    "DDP": Case(
        "ddp",
        ["ddp"],
        [f"the same with {BY_HAND}:"],
        "class DDP(DDP):\n    def no_sync(self):\n        raise ValueError('mine')\n",
        "^mine$",
    ),
    "ring": Case(
        "ddp",
        ["ddp", "ring"],
        [f"the same with {BY_HAND}{HALVES}:"],
        TWICE.format(name="ring_reduce_scatter"),
        f"{BY_HAND}{HALVES}: the gradient differs",
        GPT | {"bucket_cap_mb": 0.02},
    ),
    "tree": Case(
        "collectives",
        ["tree"],
        ["gloo on CPU, with your tree_all_reduce\n"],
        "def tree_all_reduce(tensor, peers):\n    return 2 * tensor\n",
        "tree-all-reduce of 64 bytes: the result is not the library's",
        {"times": False, "smallest": 64, "largest": 256},
    ),
    "Checkpoint": Case(
        "checkpointing",
        ["checkpointing"],
        ["with your Checkpoint"],
        "Right = Checkpoint\n"
        "class Checkpoint(Right):\n"
        "    @staticmethod\n"
        "    def backward(ctx, gradient):\n"
        "        return Right.backward(ctx, 2 * gradient)\n",
        "with your Checkpoint: ",
        {"model": "3x16x2", "steps": 3, "sequence": 8},
        ranks=1,
    ),
    "optimizers": Case(
        "optimizers",
        ["master_adamw", "eight_bit"],
        ["bf16, master copy, by your MasterAdamW", "8-bit, by your AdamW8bit"],
        "class AdamW8bit(AdamW8bit):\n"
        "    def step(self):\n        self.lr *= 2\n        super().step()\n",
        "by your AdamW8bit: the way of the weights",
        {"model": "2x16x2", "steps": 12, "batch": 4, "sequence": 8},
        ranks=1,
    ),
    "zero": Case(
        "zero",
        ["zero"],
        [
            f"  stage {stage} from scratch{whose}: "
            for stage, whose in enumerate(["", ", with your Zero", ", with your Zero", ""])
        ],
        "class Zero(Zero):\n"
        "    def step(self):\n"
        "        self.reduce()\n"
        "        for unit in self.units.values(): unit.gradient *= 0\n"
        "        super().step()\n",
        "stage 1 from scratch, with your Zero: the loss of update 1 differs",
    ),
    "fsdp": Case(
        "fsdp",
        ["fsdp"],
        ["mini-FSDP, with your FSDPUnit, FSDP"],
        "class FSDPUnit(FSDPUnit):\n"
        "    def start_reduction(self):\n"
        "        self.gradient *= 2\n        super().start_reduction()\n"
        "class FSDP(FSDP):\n    unit = FSDPUnit\n",
        "mini-FSDP, with your FSDPUnit, FSDP: the gradient",
    ),
    "tensor": Case(
        "tp",
        ["tensor"],
        [PAIR],
        "class Copy(Copy):\n"
        "    @staticmethod\n    def backward(ctx, gradient):\n        return gradient, None\n",
        f"{PAIR}: the (gradient|loss)",
        TP,
    ),
    "sequence": Case(
        "tp",
        ["tensor", "sequence"],
        [f"{PAIR}, Gather, SumScatter"],
        "class Gather(Gather):\n"
        "    @staticmethod\n    def backward(ctx, gradient):\n        raise ValueError('mine')\n",
        "^mine$",
        TP | {"sequence_parallel": True},
    ),
    "vocabulary": Case(
        "tp",
        ["vocabulary"],
        ["from scratch, with your vocab_parallel_cross_entropy"],
        TWICE.format(name="vocab_parallel_cross_entropy"),
        "from scratch, with your vocab_parallel_cross_entropy: the (gradient|loss)",
        TP,
    ),
    "experts": Case(
        "experts",
        ["experts"],
        ["by hand, with your Dispatcher", "torch: all-to-all, DDP"],
        "class Dispatcher(Dispatcher):\n"
        "    def combine(self, results, weights):\n"
        "        return super().combine(results, 2 * weights)\n",
        "by hand, with your Dispatcher: the loss of update 0 differs",
        {"model": "2x32x4", "steps": 3, "sequence": 16},
    ),
    "pipeline": Case(
        "pipeline",
        ["pipeline"],
        [f"your Pipeline {name}: " for name in ("naive", "gpipe", "1f1b", "interleaved")],
        ("/ count_tokens(self.window)", ""),
        "your Pipeline naive: the loss of update 0 differs",
        {"model": "5x16x2", "sequence": 8, "batch": 8, "micro_batches": 4, "steps": 3}
        | {"sleep_ms": 1.0},
    ),
    "server": Case(
        "parameter_server",
        ["server"],
        ["parameter server, with your RemoteTable, ParameterServer: "],
        ("gradient[ids] += rows", "gradient[ids] = rows"),
        "parameter server, with your RemoteTable, ParameterServer: the ",
        {"model": "512x2", "steps": 4, "sequence": 16},
        ranks=4,
    ),
    "reshard": Case(
        "checkpoint",
        ["reshard"],
        ["by hand, with your save_shard, load_shard: ", "torch.distributed.checkpoint: "],
        ('return manifest["step"], torch.stack(', "return 0, torch.stack("),
        "by hand, with your .*the loss of update . differs",
        {"model": "1x16x2", "sequence": 8, "steps": 4, "save_after": 2, "load_ranks": 2},
        ranks=3,
    ),
    "ring_attention": Case(
        "context",
        ["ring_attention"],
        ["  ring, with your ring_forward", "zig-zag ring, with your ring_forward", "  torch: all"],
        "right = ring_forward\n"
        "def ring_forward(q, kv, ring):\n"
        "    out, lse = right(q, kv, ring)\n"
        "    return 2 * out, lse\n",
        "ring, with your ring_forward: the loss of update 0 differs",
        {"model": "2x32x4", "steps": 3, "sequence": 24, "batch": 3},
    ),
}


@pytest.mark.parametrize("case", CASES.values(), ids=list(CASES))
def test_the_learners_part_is_what_runs(case, tmp_path, monkeypatch):
    monkeypatch.setenv("COURSE_HOME", str(tmp_path))
    yours = {"parts": "mine"}

    def shelve(file, mistake):
        if isinstance(case.mistake, tuple):
            keep_mine(tmp_path, monkeypatch, file, mistake or ("", ""))
        else:
            keep_courses(tmp_path, file, mistake)

    for file in case.files:
        shelve(file, "")
    report = runs(case.demo, {"": yours}, case.ranks, **case.options)[""].report()
    assert all(credit in report for credit in case.credit), report
    shelve(case.files[-1], case.mistake)
    both = ((yours, case.refusal), ({}, "accepted"))
    refused([(case.demo, case.options | whose, said) for whose, said in both], case.ranks)
