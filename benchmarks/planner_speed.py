"""How many layouts per second the planner looks at, beside the readable functions one by one.

    python benchmarks/planner_speed.py [--repeats 5] [--readable 200]

The search is Llama 3 405B on 16,384 H100s, 2,048 sequences of 8,192 tokens, from the call of `plan`
to the last number; recomputation, ZeRO stages, micro-batches and virtual stages count as layouts.
"Cold" is what a command or a program gets: each time a new process, numpy already imported. "Again"
is the same question once more, as a panel's slider gets it from the tables that are kept. Times are
of the processor, which other programs cannot lengthen by waiting for it.
Both ways give the same bytes and seconds, which is checked here and proven in the tests.
"""

import argparse
import random
import statistics
import time
from multiprocessing import get_context

from course_lib.theory.inputs.hardware import Cluster, accelerator
from course_lib.theory.inputs.job import Job
from course_lib.theory.inputs.models import model
from course_lib.theory.inputs.recipe import Recipe
from course_lib.theory.memory.peak import worst_stage
from course_lib.theory.planner import Plan, plan
from course_lib.theory.planner.search import search
from course_lib.theory.planner.space import Row, rows
from course_lib.theory.step.step_time import step_time

SHAPE, CLUSTER = model("llama3-405b"), Cluster(accelerator("H100-SXM"), nodes=2048)


def question(attention: str) -> Plan:
    """The plan that is timed; standard attention has selective recomputation as well."""
    return plan(SHAPE, Recipe(fused_swiglu=True, attention=attention), CLUSTER, 2048, sequence=8192)


def seconds(attention: str) -> tuple[float, float]:
    """Of the first search of a process, and of the same one again."""
    import numpy  # noqa: F401

    times = []
    for _ in range(2):
        start = time.process_time()
        question(attention)
        times.append(time.process_time() - start)
    return times[0], times[1]


def readable(found: Plan, count: int) -> float:
    """Seconds per layout of worst_stage and step_time; raises if a number differs."""
    asked, picked = found.question, random.Random(0)
    total = 0.0
    for _ in range(count):
        row, zero = picked.randrange(len(found.found.rows)), picked.randrange(4)
        layout = Row(*found.found.rows[row]).layout(zero)
        start = time.process_time()
        _, bill = worst_stage(Job(SHAPE, asked.recipes[0], layout, sequence=asked.sequence))
        step = step_time(Job(SHAPE, asked.recipes[0], layout, CLUSTER, sequence=asked.sequence))
        total += time.process_time() - start
        if bill.total_bytes != found.found.memory_bytes[row, 0, zero]:
            raise SystemExit(f"memory differs for {layout}")
        if abs(step.total_s / found.found.step_s[row, 0, zero] - 1) > 1e-9:
            raise SystemExit(f"time differs for {layout}")
    return total / count


def main() -> None:
    """Print one line per attention kernel, then the parts, then the readable path."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--repeats", type=int, default=5)
    options.add_argument("--readable", type=int, default=200)
    chosen = options.parse_args()
    for attention in ("flash", "standard"):
        with get_context("spawn").Pool(1, maxtasksperchild=1) as fresh:
            times = fresh.map(seconds, [attention] * chosen.repeats, chunksize=1)
        found = question(attention)
        print(f"{attention} attention: {found.layouts:,} layouts, {found.fitting:,} fit")
        for name, spent in zip(("cold", "again"), zip(*times, strict=True), strict=True):
            median = statistics.median(spent)
            print(
                f"  {name}: {median:.3f} s (slowest {max(spent):.3f} s) = "
                f"{found.layouts / median:,.0f} layouts/s"
            )
    start = time.process_time()
    rows(found.question)
    listed = time.process_time() - start
    start = time.process_time()
    search(found.question)
    print(f"of which listing {listed:.3f} s of {time.process_time() - start:.3f} s")
    each = readable(found, chosen.readable)
    print(f"readable: {each * 1e3:.2f} ms a layout = {1 / each:,.0f} layouts/s")


if __name__ == "__main__":
    main()
