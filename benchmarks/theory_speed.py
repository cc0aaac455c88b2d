"""How many evaluations a second this library and its peers make, in one run.

    python benchmarks/theory_speed.py [--peer-python PYTHON] [--megatron CHECKOUT] [--rounds 5]

Every round asks all tools in turn, so that a noisy machine disturbs all alike; medians are printed.
Questions: all models that everybody can count; LLaMA-3.1 405B on 16,384 H100s in many layouts.
"""

import argparse
import contextlib
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from types import TracebackType

from peer_megatron import Megatron, arguments
from theory_accuracy import peers, say_absent

from course_lib.theory.compute.flops import training_flops
from course_lib.theory.inputs.hardware import Cluster, accelerator
from course_lib.theory.inputs.job import Job
from course_lib.theory.inputs.layout import Layout
from course_lib.theory.inputs.models import MODELS
from course_lib.theory.inputs.recipe import Recipe
from course_lib.theory.memory.peak import gpu_memory
from course_lib.theory.planner import plan
from course_lib.theory.step.step_time import step_time

SHAPE, SEQUENCE, BATCH, TP = MODELS["llama3.1-405b"], 8192, 2048, 8
CLUSTER = Cluster(accelerator("H100-SXM"), 2048)
RECIPE = Recipe(gradients="fp32", fused_swiglu=True)
ROWS = {
    "parameters": "parameters of a model",
    "flop": "FLOP of a step",
    "memory": "memory of one GPU in one layout",
    "training": "memory, FLOP and time of one layout",
    "plan": "the same, in a search of all layouts",
}
Rate = Callable[[float], float]  # seconds to spend -> evaluations per second


def layouts() -> list[Layout]:
    """Tensor parallelism over a node; many depths of pipeline and sizes of micro-batch."""
    found = []
    for pp in (1, 2, 4, 8, 16, 32, 64):
        dp = CLUSTER.world // TP // pp
        for micro_batch in (1, 2, 4, 8):
            if BATCH % (dp * micro_batch) == 0:
                steps = BATCH // dp // micro_batch
                degrees = {"dp": dp, "tp": TP, "pp": pp, "sequence_parallel": True}
                found.append(Layout(**degrees, micro_batch=micro_batch, accumulation=steps))
    return found


def models() -> list[dict]:
    """Questions for the parameters of every preset without latent attention."""
    shapes = [shape for shape in MODELS.values() if not shape.mla]
    return [{"kind": "parameters", "active": False, "shape": asdict(shape)} for shape in shapes]


def flop_questions() -> list[dict]:
    """The FLOP of steps of several sizes."""
    step = {"kind": "flop", "shape": asdict(SHAPE), "sequence": SEQUENCE, "recompute": "none"}
    return [{**step, "sequences": sequences} for sequences in (256, 512, 1024, 2048)]


def over(actions: list[Callable[[], object]]) -> Rate:
    """Rate at which these actions run, over and over."""

    def rate(seconds: float) -> float:
        count, start = 0, time.perf_counter()
        while (spent := time.perf_counter() - start) < seconds:
            for action in actions:
                action()
            count += len(actions)
        return count / spent

    return rate


def ours() -> dict[str, Rate]:
    """This library: functions one by one, and the planner."""
    cluster, shapes = CLUSTER, [shape for shape in MODELS.values() if not shape.mla]

    def everything(layout: Layout) -> None:
        gpu_memory(Job(SHAPE, RECIPE, layout, sequence=SEQUENCE))
        step_time(Job(SHAPE, RECIPE, layout, cluster, sequence=SEQUENCE))

    def search(seconds: float) -> float:
        start = time.perf_counter()
        found = plan(SHAPE, RECIPE, cluster, BATCH, sequence=SEQUENCE)
        return found.layouts / (time.perf_counter() - start)

    sizes = [question["sequences"] for question in flop_questions()]
    return {
        "parameters": over([shape.parameters for shape in shapes]),
        "flop": over([lambda n=n: training_flops(SHAPE, n, SEQUENCE) for n in sizes]),
        "memory": over(
            [lambda x=x: gpu_memory(Job(SHAPE, RECIPE, x, sequence=SEQUENCE)) for x in layouts()]
        ),
        "training": over([lambda x=x: everything(x) for x in layouts()]),
        "plan": search,
    }


def megatron(checkout: Path) -> dict[str, Rate]:
    """Megatron-LM's functions, with command lines that are made beforehand."""
    run, models_args = Megatron(checkout).run, [arguments(q["shape"]) for q in models()]

    def memory(layout: Layout) -> Callable[[], object]:
        args = arguments(
            asdict(SHAPE),
            seq_length=SEQUENCE,
            micro_batch_size=layout.micro_batch,
            tensor_model_parallel_size=layout.tp,
            pipeline_model_parallel_size=layout.pp,
            data_parallel_size=layout.dp,
            world_size=layout.world,
        )
        weights = run.compute_weight_and_optimizer_memory
        activations = run.compute_activation_memory
        return lambda: weights(args) + activations(args, layout.accumulation)

    args = arguments(asdict(SHAPE), seq_length=SEQUENCE)
    sizes = [question["sequences"] for question in flop_questions()]
    count, flop = run.compute_weight_and_optimizer_memory, run.num_floating_point_operations
    return {
        "parameters": over([lambda args=args: count(args) for args in models_args]),
        "flop": over([lambda n=n: flop(args, n) for n in sizes]),
        "memory": over([memory(layout) for layout in layouts()]),
    }


class LlmAnalysis:
    """llm-analysis, kept running in its own Python, where it times itself."""

    def __init__(self, python: Path) -> None:
        script = Path(__file__).with_name("peer_llm_analysis.py")
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        self.process = subprocess.Popen([python, script], **pipes)

    def __enter__(self) -> "LlmAnalysis":
        return self

    def __exit__(
        self, kind: type | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        self.process.wait()

    def rate(self, questions: list[dict]) -> Rate:
        """Rate at which it answers these."""

        def rate(seconds: float) -> float:
            question = {"kind": "speed", "seconds": seconds, "questions": questions}
            with contextlib.suppress(BrokenPipeError):  # it has ended: no answer follows
                print(json.dumps([question]), file=self.process.stdin, flush=True)
            answers = self.process.stdout.readline()
            if not answers:
                sys.exit("--peer-python failed, see above: install llm-analysis and fire there")
            return json.loads(answers)[0]["value"]

        return rate

    def rates(self) -> dict[str, Rate]:
        """Its `training` gives memory, FLOP and time together, of a new LLMAnalysis."""
        rates = {"parameters": models(), "flop": flop_questions()}
        rates["training"] = [
            {
                "kind": "training",
                "shape": asdict(SHAPE),
                "dp": layout.dp,
                "accumulation": layout.accumulation,
                "sequence": SEQUENCE,
                "gpu": "h100-sxm-80gb",
                "inputs": vars(layout) | {"batch": BATCH, "recompute": "none"},
            }
            for layout in layouts()
        ]
        return {name: self.rate(questions) for name, questions in rates.items()}


def measure(tools: dict[str, dict[str, Rate]], rounds: int, seconds: float) -> None:
    """Print a table: questions by tools, median evaluations per second."""
    print("|".join(["", "evaluations per second", *tools, ""]))
    print("|".join(["", "---", *["---:"] * len(tools), ""]))
    for row, title in ROWS.items():
        rates: dict[str, list[float]] = {name: [] for name in tools}
        for _ in range(rounds):
            for name, its in tools.items():
                if row in its:
                    rates[name].append(its[row](seconds))
        cells = [f"{statistics.median(r):,.0f}" if r else "–" for r in rates.values()]
        print("|".join(["", title, *cells, ""]))


def main() -> None:
    """Measure every tool that is here."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    peers(parser)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=0.3, help="for each tool and question")
    options = parser.parse_args()
    say_absent(options)
    tools = {"course_lib": ours()}
    if options.megatron:
        tools["Megatron-LM"] = megatron(options.megatron)
    if not options.peer_python:
        measure(tools, options.rounds, options.seconds)
        return
    with LlmAnalysis(options.peer_python) as peer:
        tools["llm-analysis"] = peer.rates()
        measure(tools, options.rounds, options.seconds)


if __name__ == "__main__":
    main()
