"""Published memories and step times of real training runs beside this library's predictions.

    python benchmarks/measured_runs.py [FILE.json] [--cases] [--peer-python PYTHON]

Without a file: the 118 runs of tests/theory/measured_runs.json. A file of the same form is
predicted with nothing fitted to it. Each run has two errors: with the constants that were fitted to
runs of its own source replaced by what the other sources say, and with all of them. `--peer-python`
and `--simumax`: a Python that has llm-analysis or SimuMax, which is asked about the same runs.
`--here`: memory and time of updates on this machine, too (this_machine.py).
"""

import argparse
import statistics
import sys
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path

from theory_accuracy import ask_peer

from course_lib.theory.compute.flops import six_nd
from course_lib.theory.inputs.hardware import H100_LAYER_EFFICIENCY

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "theory"))
from measured_runs import FILE, SLOW, Run, job, left_out, predicted_bytes, runs, speed_error

LIMITS = {"memory": 0.10, "step": 0.15}
Errors = dict[str, float]


def fitted(found: list[Run]) -> Errors:
    """Relative errors with all constants as they are."""
    return {
        run.id: predicted_bytes(run) / run.bytes - 1
        if run.category == "memory"
        else speed_error(run)
        for run in found
    }


def without_own_source(found: list[Run]) -> Errors:
    """The same, no constant fitted to the run's own source."""
    errors = left_out([run for run in found if run.category == "memory"])
    for run in found:
        if run.category == "step":
            slow = job(run).cluster.accelerator is SLOW
            errors[run.id] = speed_error(run, H100_LAYER_EFFICIENCY if slow else None)
    return errors


def half_of_peak(found: list[Run]) -> Errors:
    """Speed errors of the short formula: 6 or 8 FLOP a parameter and token, at half the peak."""
    errors = {}
    for run in found:
        if run.category != "step":
            continue
        its = job(run)
        kind = "full" if its.recipe.recompute == "full" else "none"
        flop = six_nd(its.shape.parameters().active, its.tokens_per_update, kind)
        seconds = flop / (0.5 * its.cluster.accelerator.peak_flop_per_s * its.layout.world)
        rate = its.tokens_per_update / seconds / its.layout.world
        errors[run.id] = run.measured / seconds - 1 if run.unit == "s" else rate / run.measured - 1
    return errors


def question(run: Run) -> dict:
    """The run for a peer, with its bytes of states; weights kept gathered are ZeRO-2."""
    its = job(run)
    layout, recipe, chip = its.layout, its.recipe, run.inputs["gpu"].lower().removesuffix("-80gb")
    return {
        "kind": "measured_run",
        "shape": asdict(its.shape),
        "gpu": f"{chip}-80gb",
        "sequence": its.sequence,
        "micro_batch": layout.micro_batch,
        "accumulation": layout.accumulation,
        "zero_stage": layout.zero_stage if layout.reshard else min(layout.zero_stage, 2),
        **{f"{axis}_size": getattr(layout, axis) for axis in ("dp", "tp", "pp")},
        "sp_size": layout.tp if layout.sequence_parallel else 1,
        "cp": layout.cp,
        "stage_layers": layout.stage_layers,
        "node_bytes_per_s": its.cluster.between.bytes_per_s * its.cluster.gpus_per_node,
        "recompute": recipe.recompute,
        "attention": recipe.attention,
        "dropout": recipe.dropout,
        "optimizer": recipe.optimizer,
        "gradient_bytes": recipe.gradient_bytes,
        "state_bytes": recipe.bytes_per_parameter,
    }


def peer_errors(name: str, python: Path, found: list[Run]) -> Errors:
    """Errors of a peer on the runs that it can express."""
    errors = {}
    answers = ask_peer(python, [question(run) for run in found], name)
    for run, answer in zip(found, answers, strict=True):
        if isinstance(answer, str):
            continue
        memory_bytes, seconds = answer
        if run.category == "memory":
            errors[run.id] = memory_bytes / run.bytes - 1
        elif run.unit == "s":
            errors[run.id] = run.measured / seconds - 1
        else:
            its = job(run)
            rate = its.tokens_per_update / its.layout.world / seconds
            errors[run.id] = rate / run.measured - 1
    return errors


def line(name: str, errors: Iterable[float], limit: float) -> str:
    """Median of the sizes, the largest, how many are within the limit, and the signed median."""
    found = list(errors)
    near = sum(abs(error) <= limit for error in found)
    return (
        f"| {name} | {statistics.median(map(abs, found)):.1%} | {max(map(abs, found)):.0%} | "
        f"{near} of {len(found)} within {limit:.0%} | {statistics.median(found):+.1%} |"
    )


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("file", nargs="?", type=Path, default=FILE)
    options.add_argument("--cases", action="store_true", help="every run")
    options.add_argument("--peer-python", type=Path, help="a Python that has llm-analysis")
    options.add_argument("--simumax", type=Path, help="a Python that has SimuMax")
    options.add_argument("--here", action="store_true", help="updates on this machine as well")
    chosen = options.parse_args()
    found = runs(chosen.file)
    every, other = fitted(found), without_own_source(found)
    if chosen.cases:
        for run in found:
            print(f"{run.id:44}{run.framework or '?':20}{other[run.id]:+7.1%}{every[run.id]:+7.1%}")
    print("| | median size | worst | | median with sign |\n|---|---:|---:|---|---:|")
    for category, limit in LIMITS.items():
        names = [run.id for run in found if run.category == category]
        if names:
            print(line(f"{category}, own source left out", (other[name] for name in names), limit))
            print(line(f"{category}, all constants", (every[name] for name in names), limit))
    short = half_of_peak(found)
    if short:
        print(line("step, 6·N·D at half the peak", short.values(), LIMITS["step"]))
    for peer, python in {"llm-analysis": chosen.peer_python, "SimuMax": chosen.simumax}.items():
        if python is None:
            continue
        theirs = peer_errors(peer, python, found)
        for category, limit in LIMITS.items():
            names = [run.id for run in found if run.category == category and run.id in theirs]
            rows = {peer: theirs, "we, own source left out": other, "we, all constants": every}
            for name, errors in rows.items() if names else ():
                title = f"{category}, on {peer}'s: {name}"
                print(line(title, (errors[each] for each in names), limit))
    if chosen.here:
        from this_machine import here, table  # needs torch

        print(f"\n{table(here())}")


if __name__ == "__main__":
    main()
