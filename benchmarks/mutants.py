"""The power of the tests: how many small, deliberate mistakes in the library they notice.

    python benchmarks/mutants.py [--mutants 200] [--seed 9] [--list]
    python benchmarks/mutants.py --only course_lib/theory/planner/space.py:98

A mutant is the library with one operator, comparison or constant changed: + becomes -, < becomes <=
or >=, an integer grows by one, a float doubles. All such changes in theory, checking, launch and
scratch are equally likely to be drawn; a longer draw starts with the shorter one. Strings, type
hints and messages of assertions are left alone. `--list` shows the draw; `--only` tries all changes
of a line, whatever was tried before.

First the tests run once under coverage, which follows ranks and other child processes too. Then
each mutant, in a copy of the checkout, meets the tests that ran its statement, quick ones first, up
to the first failure; if it survives, the other tests in the files that run its module, and if it
stands outside functions, all tests of its room. A test that takes long must fail twice: tests with
processes may fail on a busy machine. A time-out counts as noticed. Notebooks and the browser are
left out, and so are tests that fail without any mutant.

Results go to build/mutants, and a second call goes on where the first one ended: remove that folder
after a change of code or tests. Needs Linux or macOS and coverage (`pip install "coverage>=7.13"`).
"""

import argparse
import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import accumulate
from pathlib import Path
from queue import SimpleQueue
from typing import Any, TypeVar

import psutil
from mutant_places import ROOMS, Mutant, all_mutants

T = TypeVar("T")
ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "build" / "mutants"
FIRST_S = 10.0  # seconds of tests in a mutant's first run: most mutants are noticed there
TWICE_S = 0.3  # a test that takes longer must fail twice
SETTINGS = """[run]
include = {0}/course_lib/*
data_file = {0}/.coverage
parallel = true
core = ctrace
patch = subprocess, _exit, fork
"""


def copied(folder: Path) -> Path:
    """A copy of the checkout, without what git ignores."""
    listed = ["git", "-C", str(ROOT), "ls-files", "-coz", "--exclude-standard"]
    for name in subprocess.run(listed, capture_output=True, check=True).stdout.decode().split("\0"):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)
    (folder / ".coveragerc").write_text(SETTINGS.format(folder))
    return folder


def pytest_in(folder: Path, limit_s: float, *arguments: str, under: str = "") -> dict[str, Any]:
    """The notes of a run of pytest in a copy; no process is left of it."""
    answer, mark = Path(f"{folder}.json"), f"{folder} {time.monotonic_ns()}"
    for old in (answer, *folder.glob(".coverage.*")):
        old.unlink(missing_ok=True)
    paths = f"{folder}{os.pathsep}{folder / 'benchmarks'}"
    environment = {**os.environ, "MUTANTS_COPY": str(folder), "MUTANTS_RUN": mark}
    command = f"{sys.executable} -m {under} pytest -p mutant_recorder -p no:cacheprovider -q"
    options = ["--override-ini=addopts=", "--hypothesis-seed=0"]
    ended: int | str = "timeout"
    with open(f"{folder}.log", "w") as log, contextlib.suppress(subprocess.TimeoutExpired):
        ended = subprocess.run(
            [*command.split(), *options, *arguments], cwd=folder, timeout=limit_s,
            env={**environment, "PYTHONPATH": paths}, stdout=log, stderr=log,
        ).returncode  # fmt: skip
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.environ().get("MUTANTS_RUN") == mark:
                process.kill()
    notes = json.loads(answer.read_text()) if answer.exists() else {"failed": {}}
    if ended not in (0, 1, 5) and not notes["failed"]:  # 5: no test is left
        notes["failed"] = {"the run": ended if ended == "timeout" else f"ended with {ended}"}
    return notes


def file_of(test: str) -> str:
    return test.split("::")[0]


def in_room(test: str, room: str) -> bool:
    return test.startswith(f"tests/{room}/")


class Known:
    """What the runs under coverage found: seconds of each test, and the tests that ran a line."""

    def __init__(self, found: list[dict[str, Any]]) -> None:
        self.failed = {test: how for each in found for test, how in each["failed"].items()}
        self.seconds = {t: s for each in found for t, s in each["seconds"].items()}
        self.ran: dict[str, dict[int, set[str]]] = defaultdict(lambda: defaultdict(set))
        for test, names in ((t, names) for each in found for t, names in each["lines"].items()):
            for name, lines in names.items():
                for line in lines:
                    self.ran[name][line].add(test)

    def ordered(self, tests: set[str], room: str) -> list[str]:
        """The room's own files first, quick files first, quick tests first in each file."""
        total: dict[str, float] = defaultdict(float)
        for test in tests:
            total[file_of(test)] += self.seconds[test]

        def rank(test: str) -> tuple[bool, float, str, float]:
            file = file_of(test)
            return not in_room(test, room), total[file], file, self.seconds[test]

        return sorted(tests - set(self.failed), key=rank)

    def groups(self, mutant: Mutant) -> Iterator[list[str]]:
        """The tests of a mutant's runs, one after the other."""
        ran, room = self.ran[mutant.path], mutant.room
        module = set().union(*ran.values())
        likely = set().union(*(ran[line] for line in mutant.lines)) if mutant.lines else module
        tests = self.ordered(likely, room)
        cut = sum(spent < FIRST_S for spent in accumulate(self.seconds[test] for test in tests))
        yield tests[: cut + 1]
        yield tests[cut + 1 :]
        # A fixture or an import runs with one test and serves others.
        files = {file_of(test) for test in module}
        served = {test for test in self.seconds if file_of(test) in files}
        if not mutant.lines:
            served |= {test for test in self.seconds if in_room(test, room)}
        yield self.ordered(served - likely, room)

    def verdict(self, folder: Path, tests: list[str]) -> tuple[str, str]:
        """How a mutant's copy fared (survived, failed, timeout, …), and the test that said so."""
        while tests:
            each_s = 20 + 5 * max(self.seconds[test] for test in tests)
            total_s = 300 + 5 * sum(self.seconds[test] for test in tests)
            options = "-x", f"--override-ini=timeout={each_s:.0f}"
            # Tests that nobody knows stay: a mutant may change the name of a parametrized test.
            order = {**dict.fromkeys(self.seconds, -1), **{t: i for i, t in enumerate(tests)}}
            Path(f"{folder}.order").write_text(json.dumps(order))
            files = dict.fromkeys(map(file_of, tests))
            failed = pytest_in(folder, total_s, *options, *files)["failed"]
            if not failed:
                break
            test, how = next(iter(failed.items()))
            if how != "failed" or self.seconds.get(test, 0) < TWICE_S:
                return how, test
            if pytest_in(folder, total_s, *options, test)["failed"]:
                return how, test
            tests = tests[tests.index(test) + 1 :]  # a busy machine
        return "survived", ""


def judged(folder: Path, mutant: Mutant, known: Known) -> dict[str, Any]:
    """The outcome of one mutant, in a copy that is whole again afterwards."""
    path, start_s = folder / mutant.path, time.monotonic()
    source, status = path.read_bytes(), path.stat()
    path.write_bytes(mutant.source)
    # Compiled files are recognized by size and whole seconds: a second of its own for each mutant.
    os.utime(path, (mutant.number, mutant.number))
    how, by = "survived", ""
    for tests in known.groups(mutant):
        how, by = known.verdict(folder, tests)
        if how != "survived":
            break
    path.write_bytes(source)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    seconds = round(time.monotonic() - start_s, 1)
    names = {"number": mutant.number, "name": mutant.name, "room": mutant.room}
    return {**names, "how": how, "by": by, "seconds": seconds}


# --- The work, shared among copies, and the report ------------------------------------------------


def share(tasks: Sequence[T], workers: int, work: Callable[[Path, T], None]) -> None:
    """Call `work(copy, task)` for all tasks; each worker has a copy of the checkout."""
    copies: SimpleQueue[Path] = SimpleQueue()

    def one(task: T) -> None:
        folder = copies.get()
        try:
            work(folder, task)
        finally:
            copies.put(folder)

    with tempfile.TemporaryDirectory() as name, ThreadPoolExecutor(workers) as pool:
        for number in range(workers):
            copies.put(copied(Path(name) / f"copy{number}"))
        try:
            list(pool.map(one, tasks))
        finally:
            pool.shutdown(cancel_futures=True)


def traced(workers: int) -> Known:
    """Run the tests under coverage, folder by folder, unless that was done before."""
    tests = ROOT / "tests"
    parts = {
        path.name: [f"tests/{path.name}"] for path in tests.iterdir() if any(path.glob("test_*.py"))
    }
    parts.pop("browser", None)
    parts["root"] = [f"tests/{path.name}" for path in sorted(tests.glob("test_*.py"))]
    notes = {part: RESULTS / "lines" / f"{part}.json" for part in parts}

    def trace(folder: Path, part: str) -> None:
        Path(f"{folder}.order").write_text("{}")
        options = "--continue-on-collection-errors", "--override-ini=timeout=600"
        under = "coverage run --rcfile=.coveragerc -m"
        found = pytest_in(folder, 7200, *options, *parts[part], under=under)
        notes[part].write_text(json.dumps(found))
        print(f"{part}: {sum(found['seconds'].values()):.0f} s under coverage", flush=True)

    notes["root"].parent.mkdir(parents=True, exist_ok=True)
    share([part for part in parts if not notes[part].exists()], workers, trace)
    return Known([json.loads(path.read_text()) for path in notes.values()])


def report(results: list[dict[str, Any]], known: Known) -> None:
    """A line per room, then every mutant that no test noticed."""
    print(f"{'':10}{'mutants':>9}{'noticed':>9}{'timed out':>11}{'survived':>10}{'noticed':>9}")
    for room in (*ROOMS, "all"):
        hows = Counter(each["how"] for each in results if room in (each["room"], "all"))
        if total := hows.total():
            late, alive = hows["timeout"], hows["survived"]
            share = f"{100 * (total - alive) / total:.1f} %"
            print(f"{room:10}{total:9}{total - late - alive:9}{late:11}{alive:10}{share:>9}")
    for each in (each for each in results if each["how"] == "survived"):
        print(f"survived: {each['name']}")
    for test, how in known.failed.items():
        print(f"left out, {how} without any mutant: {test}")


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--mutants", type=int, default=200)
    options.add_argument("--seed", type=int, default=9)
    options.add_argument("--workers", type=int, default=2)
    options.add_argument("--only", metavar="PATH:LINE", help="all mutants of one line")
    options.add_argument("--list", action="store_true", help="print the mutants, run nothing")
    chosen = options.parse_args()
    mutants = all_mutants(chosen.seed)
    if chosen.only:
        mutants = [mutant for mutant in mutants if mutant.place == chosen.only]
    else:
        mutants = mutants[: chosen.mutants]
    if chosen.list:
        print(*(mutant.name for mutant in mutants), sep="\n")
        return
    known, log = traced(chosen.workers), RESULTS / "results.jsonl"
    log.touch()
    done = {each["number"]: each for each in map(json.loads, log.read_text().splitlines())}

    def judge(folder: Path, mutant: Mutant) -> None:
        result = done[mutant.number] = judged(folder, mutant, known)
        with log.open("a") as file:
            file.write(json.dumps(result) + "\n")
        print(
            f"{result['how']:10}{result['seconds']:7} s  {mutant.name}  {result['by']}", flush=True
        )

    again = chosen.only is not None
    left = [mutant for mutant in mutants if again or mutant.number not in done]
    share(left, chosen.workers, judge)
    report([done[mutant.number] for mutant in mutants], known)


if __name__ == "__main__":
    main()
