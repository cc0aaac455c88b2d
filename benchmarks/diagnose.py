"""The hang doctor against faults that were put in: which rank, which line, which cause.

    python benchmarks/diagnose.py --seeds 25

Each launch is real: 2 to 4 ranks on gloo, of which one is broken from a random update on (the first
update is healthy). Of two ranks that call different things neither can be believed more: there the
answer is right if it has the cause and the broken line, and accuses nobody.
"""

import argparse
import contextlib
import inspect
import json
import multiprocessing
import os
import random
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from course_lib import demos, launch
from course_lib.chapters.ch16_cluster_clinic import diagnosing
from course_lib.demos.faults import kinds, program

# What should be said of each kind: the cause, and a piece of the line that should be named (none
# where the rank is gone without a word).
EXPECTED = {
    "kill": ("killed", ""),
    "error": ("error", "torch.ones(5)"),
    "memory": ("memory", "new_empty(HUGE)"),
    "port": ("port", "dist.TCPStore("),
    "short": ("finished early", ""),
    "hang": ("stuck", "time.sleep(1)"),
    "pattern": ("stuck", "re.match("),
    "slow": ("straggler", "time.sleep(0.2)"),
    "loader": ("loader", "DataLoader("),
    "worker": ("loader", "DataLoader("),
    "shm": ("shared memory", "in batches"),
    "collective": ("collective", "dist.broadcast("),
    "shape": ("size", "repeat(1000)"),
    "dtype": ("size", "double()"),
    "order": ("order", "gathered(update)"),
    "extra": ("extra", "dist.barrier()"),
    "twice": ("extra", "dist.all_reduce(torch.zeros(4))"),
    "subgroup": ("subgroup", "group=update.group"),
    "interface": ("interface", ""),  # the line is that of all ranks
    "link": ("nothing", ""),  # which no record shows
    "weights": ("nothing", ""),
    "cycle": ("circle", "dist.recv("),
    "absent": ("never came", ""),
    "none": ("nothing", ""),
    "demo": ("nothing", ""),
}
# Kinds of which, on two ranks, either side may be the wrong one.
TWO_SIDED = {"short", "collective", "shape", "dtype", "order", "extra", "twice", "subgroup"}
# Kinds that hang, and are interrupted when no rank moves; the others end by themselves, and
# `pattern`, which stops its own page as well, at a time limit.
HANGS = {
    "short", "hang", "loader", "collective", "order", "extra", "twice", "subgroup",
    "cycle",
}  # fmt: skip
LONG_S = 90.0
SMALL = {"model": "2x16x2", "steps": 6, "sequence": 8, "batch": 12}
HEALTHY = ("ddp", "zero", "fsdp", "yafsdp", "overlap", "optimizers")


@dataclass
class Row:
    """What was said of one kind."""

    launches: int = 0
    right: int = 0
    two_sides: int = 0
    healthy_accused: int = 0
    said: Counter[str] = field(default_factory=Counter)


@dataclass(frozen=True)
class Case:
    """One launch."""

    kind: str
    ranks: int
    broken: int
    steps: int
    step: int


def case_of(kind: str, seed: int) -> Case:
    rng = random.Random(f"{kind} {seed}")
    ranks = rng.randint(2, 4)
    steps = 14 if kind == "slow" else rng.randint(2, 5)
    step = 2 if kind == "slow" else rng.randint(2, steps)
    return Case(kind, ranks, rng.randrange(ranks), steps, step)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=25)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--kinds", nargs="*", default=list(EXPECTED), choices=list(EXPECTED))
    arguments = parser.parse_args()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell ignores it behind an &
    rows = {kind: Row() for kind in arguments.kinds}
    start_s = time.monotonic()
    for done in range(arguments.seeds):
        seed = arguments.first + done
        for kind in arguments.kinds:
            _one(case_of(kind, seed), rows[kind], seed)
        _show(rows, done + 1, time.monotonic() - start_s)


def _one(case: Case, row: Row, seed: int) -> None:
    with tempfile.TemporaryDirectory() as path:
        folder = Path(path)
        _run(case, folder, seed)
        diagnosis = diagnosing.diagnose(folder)
    finding = diagnosis.finding
    broken = _broken(case)
    two_sided = case.kind in TWO_SIDED and case.ranks == 2
    cause, _ = EXPECTED[case.kind]
    wanted = set() if two_sided or case.kind == "cycle" or cause == "nothing" else broken
    right = finding.cause == cause and set(finding.ranks) == wanted and _line_named(case, finding)
    row.launches += 1
    row.right += right
    row.two_sides += right and two_sided
    row.healthy_accused += bool(set(finding.ranks) - broken)
    row.said[finding.cause] += 1
    if not right:
        print(f"{case} seed {seed}: {finding.cause}\n{diagnosis.report()}", file=sys.stderr)


def _broken(case: Case) -> set[int]:
    if case.kind in kinds.EVERYWHERE:
        return set(range(case.ranks))
    return set() if case.kind in ("none", "demo") else {case.broken}


def _line_named(case: Case, finding: object) -> bool:
    """Whether one of the lines is the broken one."""
    _, piece = EXPECTED[case.kind]
    if not piece:
        return True
    source, first = inspect.getsourcelines(kinds.KINDS[case.kind])
    number = first + next(place for place, text in enumerate(source) if piece in text)
    return any(
        line.line == number and line.file.endswith("kinds.py")
        for line in finding.lines.values()  # type: ignore[attr-defined]
    )


def _run(case: Case, folder: Path, seed: int) -> None:
    if case.kind == "absent":
        _all_but_one(case, folder)
        return
    with contextlib.suppress(launch.RankFailed):
        if case.kind == "demo":
            name = HEALTHY[seed % len(HEALTHY)]
            options = SMALL if name != "ddp" else {"model": "2x16x2", "steps": 6}
            demos.run(name, ranks=case.ranks, stream=False, record=folder, **options)
            return
        with _stopped_when_still(folder, case.ranks) if case.kind in HANGS else _nothing():
            demos.run(
                "faults",
                ranks=case.ranks,
                timeout_s=_limit_s(case),
                stream=False,
                record=folder,
                kind=case.kind,
                rank=case.broken,
                steps=case.steps,
                step=case.step,
            )


@contextlib.contextmanager
def _stopped_when_still(folder: Path, ranks: int) -> Iterator[None]:
    """Press Ctrl-C once no rank has moved for 1.5 s, as somebody would who sees it hang."""
    done = threading.Event()

    def watch() -> None:
        while not done.wait(0.2):
            pages = [_page(folder / f"rank{rank}.json") for rank in range(ranks)]
            if all(
                page.get("state") == "returned" or page.get("still_s", 0) > 1.5 for page in pages
            ):
                os.kill(os.getpid(), signal.SIGINT)
                return

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        with contextlib.suppress(launch.Stopped):
            yield
    finally:
        done.set()
        watcher.join()


_nothing = contextlib.nullcontext


def _page(path: Path) -> dict[str, Any]:
    try:
        page: dict[str, Any] = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return page


def _limit_s(case: Case) -> float:
    """For what cannot be interrupted: three healthy launches of this moment, and 2.5 s to hang."""
    if case.kind != "pattern":
        return LONG_S
    start_s = time.monotonic()
    launch.run(_first, ranks=case.ranks, stream=False)
    return 2.5 + 3 * (time.monotonic() - start_s)


def _first() -> None:
    import torch
    import torch.distributed as dist

    dist.all_reduce(torch.ones(4))


def _all_but_one(case: Case, folder: Path) -> None:
    """Start the ranks by hand, all but the broken one."""
    with tempfile.TemporaryDirectory() as meeting:
        fork = multiprocessing.get_context("fork")
        started = [
            fork.Process(target=_by_hand, args=(rank, case, folder, meeting))
            for rank in range(case.ranks)
            if rank != case.broken
        ]
        for process in started:
            process.start()
        for process in started:
            process.join()


def _by_hand(rank: int, case: Case, folder: Path, meeting: str) -> None:
    silent = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silent, 2)
    os.environ |= {
        "RANK": str(rank),
        "WORLD_SIZE": str(case.ranks),
        "COURSE_STORE": f"{meeting}/store",
        "COURSE_TIMEOUT_S": "2",
        "COURSE_RECORD": str(folder),
    }
    launch.program(program.main, program.Options())


def _show(rows: dict[str, Row], seeds: int, seconds: float) -> None:
    """The table so far."""
    print(f"\nafter {seeds} seeds, {seconds:.0f} s\n")
    print("| kind | launches | right | of these two sides | healthy rank accused | said |")
    print("| --- | ---: | ---: | ---: | ---: | --- |")
    for kind, row in rows.items():
        said = ", ".join(f"{cause} {count}" for cause, count in row.said.most_common())
        numbers = (row.launches, row.right, row.two_sides, row.healthy_accused)
        print(f"| `{kind}` | {' | '.join(map(str, numbers))} | {said} |")
    totals = [
        sum(getattr(row, name) for row in rows.values())
        for name in ("launches", "right", "two_sides", "healthy_accused")
    ]
    print(
        f"| all | {' | '.join(map(str, totals))} | {100 * totals[1] / totals[0]:.1f} % |",
        flush=True,
    )


if __name__ == "__main__":
    main()
