"""Exercises and quiz of chapter 15, launchers, frameworks and recovery."""

import re
from typing import Any

from course_lib.chapters.ch15_launchers_and_recovery import recovery
from course_lib.chapters.ch15_launchers_and_recovery.builds import launcher, reshard
from course_lib.chapters.ch15_launchers_and_recovery.graphs import graphs_made
from course_lib.checking import (
    Wrong,
    exercise,
    expect_calls,
    expect_entries,
    expect_equal,
    expect_number,
    expect_numbers,
    expect_parts,
)
from course_lib.theory.inputs.models import MODELS
from course_lib.theory.inputs.recipe import Recipe

_DAY_S = 86_400


@exercise("15.1")
def _interval(answer: Any) -> None:
    size = recovery.checkpoint_bytes(MODELS["llama2-70b"].parameters().total, Recipe())
    save_s = size / 20e9
    mtbf_s = recovery.machine_mtbf_s(1500 * _DAY_S, 4096)
    young_s = recovery.young_interval_s(save_s, mtbf_s)
    lost = recovery.wasted_fraction(young_s, save_s, mtbf_s, 300)
    expect_numbers(
        answer,
        "seconds, hours, minutes and a fraction",
        (save_s, "827.7 GB at 20 GB/s", 5e-3, "s"),
        (mtbf_s / 3600, "4,096 GPUs fail 4,096 times as often", 5e-3, "h"),
        (young_s / 60, "the root of 2 · save · mtbf, in seconds", 5e-3, "min"),
        (lost, "C/τ + τ/2M + R/M, with R = 300 s", 1e-2, ""),
    )


_TEAMS: dict[str, tuple[float, float, float, str]] = {
    "a save takes 300 s, a restart 2 min, a failure comes every 6 h": (
        300.0,
        21_600.0,
        120.0,
        "saves and repeated work cost 17 %, restarts half of one",
    ),
    "a save takes 5 s, a restart 20 min, a failure comes every 3 h": (
        5.0,
        10_800.0,
        1200.0,
        "restarts cost 11 %, all else 3",
    ),
    "a save takes 60 s, a restart 20 min, a failure comes every 3.1 h": (
        60.0,
        11_160.0,
        1200.0,
        "the terms are equally large, and rarer failures shrink all of them",
    ),
}


def _least_waste(save_s: float, mtbf_s: float, restart_s: float) -> float:
    best_s = recovery.daly_interval_s(save_s, mtbf_s)
    return recovery.expected_waste(best_s, save_s, mtbf_s, restart_s)


def _best_offer(save_s: float, mtbf_s: float, restart_s: float) -> str:
    waste = {
        "storage": _least_waste(save_s / 4, mtbf_s, restart_s),
        "restarts": _least_waste(save_s, mtbf_s, restart_s / 3),
        "GPUs": _least_waste(save_s, 2 * mtbf_s, restart_s),
    }
    return min(waste, key=waste.__getitem__)


@exercise("15.2")
def _buy(answer: Any) -> None:
    right = {team: (_best_offer(*times), because) for team, (*times, because) in _TEAMS.items()}
    expect_entries(answer, right, "a dict of offers", each="'storage', 'restarts' or 'GPUs'")


_SLURM = "from_slurm(slurm, address, port)"


def _told(rank: int, node: int, local: int, nodes: int, local_ranks: int) -> dict[str, str]:
    return {
        "SLURM_PROCID": str(rank),
        "SLURM_NTASKS": str(nodes * local_ranks),
        "SLURM_NODEID": str(node),
        "SLURM_LOCALID": str(local),
        "SLURM_NTASKS_PER_NODE": str(local_ranks),
    }


@exercise("15.3")
def _from_slurm(function: Any) -> None:
    from course_lib.scratch.launcher import rank_environment

    reasons = {
        (0, 0, 0, 1, 1): "one rank is rank 0 of 1",
        (5, 0, 5, 2, 8): "on node 0 the rank is the local rank",
        (11, 1, 3, 2, 8): "8 ranks stand on node 0 before it; devices are counted anew",
        (7, 1, 3, 2, 8): "dealt out like cards, the fourth task on node 1 is task 7",
    }
    cases = []
    for (rank, node, local, nodes, local_ranks), because in reasons.items():
        slurm = _told(rank, node, local, nodes, local_ranks)
        expected = rank_environment(
            local, local_ranks, 29_500, node=node, nodes=nodes, address="node0"
        ) | {"RANK": str(rank)}
        cases.append(((slurm, "node0", 29_500), expected, because))
    expect_calls(function, cases, signature=_SLURM)


_PIECES = "pieces(total, writers, readers, rank)"


def _pieces(total: int, writers: int, readers: int, rank: int) -> list[tuple[int, int, int]]:
    from course_lib.scratch.recovery import columns

    low, high = columns(total, rank, readers)
    slices = []
    for writer in range(writers):
        first, last = columns(total, writer, writers)
        if max(first, low) < min(last, high):
            slices.append((writer, max(first, low) - first, min(last, high) - first))
    return slices


@exercise("15.4")
def _reshard(function: Any) -> None:
    reasons = {
        (10, 4, 3, 1): "the last two of file 1 and the first of file 2",
        (12, 4, 3, 0): "file 0, and the first of file 1",
        (37, 4, 3, 2): "the rest of file 2, and file 3",
        (37, 3, 4, 1): "more ranks read than wrote",
        (10, 2, 2, 1): "as many ranks: one whole file",
        (10, 5, 1, 0): "one rank reads all",
        (5, 7, 2, 1): "a file without a column is not read",
    }
    cases = [(sizes, _pieces(*sizes), because) for sizes, because in reasons.items()]
    expect_calls(function, cases, signature=_PIECES)


_CAUSES = (
    "one process",
    "clipping",
    "optimizer built too early",
    "saved too seldom",
    "moments not saved",
    "device by RANK",
    "standalone",
)
_SYMPTOMS = {
    "two GPUs, no error; the losses are those of half the global batch": (
        "one process",
        "one rank sees half of the samples",
    ),
    "under fully_shard the loss is the same in every update": (
        "optimizer built too early",
        "the old tensors get no gradient, and the optimizer skips them",
    ),
    "the losses equal those of DDP until the loss rises once; from then on they differ": (
        "clipping",
        "only a gradient above the limit is clipped",
    ),
    "after a restart the loss goes on where it was, jumps up at once, and comes down in an hour": (
        "moments not saved",
        "the weights are there, and AdamW's first steps are too large without its moments",
    ),
    "it runs on one node; on two, each rank of the second node ends with: invalid device ordinal": (
        "device by RANK",
        "ranks 8 to 15 ask for GPUs 8 to 15, and a node numbers its own from 0",
    ),
    "16 GPUs on two nodes, twice eight ranks, and two log files that both begin with rank 0": (
        "standalone",
        "--standalone lets each node meet itself: two runs that know nothing of each other",
    ),
}


@exercise("15.5")
def _causes(answer: Any) -> None:
    choices = f"one of {', '.join(map(repr, _CAUSES))}"
    expect_entries(answer, _SYMPTOMS, "a dict of causes", each=choices)


_OPTIONS = {
    "sbatch --nodes": ("4", "four nodes were right"),
    "sbatch --ntasks-per-node": ("1", "one agent for each node, which starts the ranks"),
    "sbatch --gpus-per-node": ("8", "a node has a GPU for each of its ranks"),
    "srun --cpus-per-task": ("96", "the agent's ranks share all cores: it was right"),
    "torchrun --nnodes": ("4", "as many agents must meet"),
    "torchrun --nproc-per-node": ("8", "one rank for each GPU"),
    "torchrun --rdzv-id": ("$SLURM_JOB_ID", "its own name for each job was right"),
    "torchrun --rdzv-backend": ("c10d", "it was right"),
}


@exercise("15.6")
def _mend(answer: Any) -> None:
    head: Any = answer.get("HEAD") if isinstance(answer, dict) else None
    if isinstance(answer, dict):
        if not isinstance(head, str):
            raise Wrong(f"gave {head!r} for 'HEAD', expected a name, or what prints one, as text")
        answer = {key: str(value) for key, value in answer.items()}
    expect_entries(answer, _OPTIONS, "a dict of options", each="the text behind the option")
    _expect_endpoint(str(answer.get("torchrun --rdzv-endpoint")), head)
    restarts = str(answer.get("torchrun --max-restarts"))
    if not restarts.isdigit() or int(restarts) == 0:
        raise Wrong(
            f"gave {restarts!r} for 'torchrun --max-restarts', expected a number that "
            "outlives one failure"
        )


def _expect_endpoint(endpoint: str, head: str) -> None:
    """Raise `Wrong` unless `endpoint` names the same machine on all nodes; `head` replaces $HEAD.

    $(hostname) is valid: the batch script's shell expands it on the first node, for all nodes.
    """
    host, _, port = (part.strip() for part in endpoint.partition(":"))
    host = head.strip() if host in ("$HEAD", "${HEAD}") else host
    name = re.fullmatch(r"[A-Za-z][\w.-]*|\$\(.*hostname.*\)", host)
    if not port.isdigit() or not name or host in ("None", "localhost"):
        raise Wrong(
            f"gave {endpoint!r} for 'torchrun --rdzv-endpoint' and {head!r} for 'HEAD', expected a "
            "port of a machine that all nodes find by the same name"
        )


def _with_two_kills(every: int) -> tuple[int, int]:
    """Total updates, and the seconds spent on saves and repeated updates, after two failures."""
    repeated = sum(recovery.lost_steps(done, every) for done in (1120, 1240))
    return 1500 + repeated, 1500 // every * 20 + 4 * repeated


@exercise("15.7")
def _twice(answer: Any) -> None:
    expect_parts(answer, 4, "two numbers of updates and two of seconds")
    (seldom, seldom_s), (often, often_s) = (_with_two_kills(every) for every in (250, 50))
    expect_equal(answer[0], seldom, "120 and 240 are done again, both from update 1,000")
    expect_equal(answer[1], often, "20 from update 1,100 and 40 from update 1,200")
    expect_number(
        answer[2], seldom_s, "6 saves of 20 s, and 4 s for each repeated update", unit="s"
    )
    expect_number(
        answer[3], often_s, "30 saves of 20 s, and 4 s for each repeated update", unit="s"
    )


def _epoch(samples: int, size: int, drop_last: bool = False) -> list[int]:
    """The batch sizes of one epoch."""
    rest = samples % size
    return [size] * (samples // size) + ([] if drop_last or not rest else [rest])


@exercise("15.8")
def _graphs(answer: Any) -> None:
    expect_parts(answer, 5, "five numbers of graphs")
    cases = (
        ([8], "one size, one graph"),
        (_epoch(100, 8) * 3, "the 4 samples at the end make the graph for all sizes"),
        (_epoch(97, 8) * 3, "1 sample at the end gets a graph of its own"),
        (_epoch(97, 8, drop_last=True) * 3, "no ragged batch is left"),
        (_epoch(100, 8) + _epoch(100, 32), "32 fits the graph that 4 has made"),
    )
    for letter, given, (sizes, because) in zip("abcde", answer, cases, strict=True):
        expect_equal(given, graphs_made(sizes), because, what=f"for ({letter}) it")


_CLAIMS: dict[str, tuple[object, str]] = {
    "accelerate runs PyTorch and TensorFlow programs": (False, "it is for PyTorch"),
    "GPT-3 was trained with DeepSpeed": (
        False,
        "MT-NLG 530B and BLOOM were, with Megatron (arXiv:2201.11990, arXiv:2211.05100)",
    ),
    "with tp 8, 64 GPUs, accumulation 4 and micro-batch 2 the global batch is 512": (
        False,
        "64 / 8 = 8 replicas, so it is 64",
    ),
    "on two cards of 25.4 GB FSDP trains GPT-2 XL in fp32 with AdamW, and DDP cannot": (
        True,
        "the states alone are 24.9 GB; shared by two, 12.5 GB are left for the rest",
    ),
    "ZeRO saves storage and no computing; its third stage sends more than DDP": (
        True,
        "half as much again, and every rank computes as before",
    ),
    "when Slurm requeues a job, it puts the program back to where it was": (
        False,
        "it runs the script from its first line; the program resumes",
    ),
}


@exercise("15.9")
def _true_or_false(answer: Any) -> None:
    expect_entries(answer, _CLAIMS, "a dict of True and False", each="True or False")


BUILDS = (launcher.LAUNCHER, reshard.RESHARD)
