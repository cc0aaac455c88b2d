"""The power of the tests: how many small, deliberate mistakes in the library they notice.

    python benchmarks/mutants.py [--mutants 200] [--seed 9] [--workers 2] [--list]

A mutant is the library with one operator, comparison or constant changed: + becomes -, < becomes <=
or >=, an integer grows by one or doubles, a float doubles. All such changes in theory, checking,
launch, scratch and the chapters' rooms are equally likely to be drawn; a longer draw starts with
the shorter one. Strings, type hints, messages of assertions, the cases that a chapter's check tries
and the defaults of a demo's options are left alone.

Each mutant, in a copy of the checkout, meets the tests of its own module first, found by name;
then, if it survives, those of its room and of what uses it, up to the first failure. A time-out
counts as noticed. Notebooks, the browser and most demos are left out. Results are added to
build/mutants.jsonl, and a second call goes on where the first one ended: remove that file after a
change of code or tests.
"""

import argparse
import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue

from mutant_places import ROOMS, ROOT, Mutant, all_mutants

RESULTS = ROOT / "build" / "mutants.jsonl"
LIMIT_S = 400.0
OPTIONS = "-x -q -p no:cacheprovider -p no:nbval --override-ini=addopts= --hypothesis-seed=0"
CHAPTER_TESTS = (
    "test_typical_mistakes_are_refused_by_a_sentence",
    "test_every_solution_passes",
    "test_nonsense_is_refused_by_a_sentence",
    "test_no_unsolved_exercise_passes",
)


def stages(mutant: Mutant) -> Iterator[list[str]]:
    """The arguments of pytest, run by run: the module's own tests, then those around it."""
    _, room, *inner, file = mutant.path.split("/")
    name = inner[-1] if file == "__init__.py" and inner else Path(file).stem
    if room == "theory":
        own = named(f"tests/theory/{inner[0]}", name) or named(f"tests/theory/{inner[0]}")
        yield [test for test in own if "against_torch" not in test]
        yield named("tests/theory/*")
        yield [*named("tests/theory"), "tests/cli/test_cli_theory.py", "tests/figures"]
    elif room == "chapters" and name == "exercises":
        every = "tests/checking/test_chapters.py"
        yield [f"{every}::{test}[{int(inner[0][2:4])}]" for test in CHAPTER_TESTS]
        yield ["tests/checking/test_audits.py", "tests/checking/test_right_in_another_form.py"]
    elif room == "chapters" and "builds" in (name, *inner):
        builds = re.findall(r'= build\(\s*"(\w+)"', (ROOT / mutant.path).read_text())
        yield ["tests/checking/builds", "-k", " or ".join(builds)]
    elif room == "chapters":
        own = f"tests/chapters/{inner[0]}" if inner else "tests/building"
        if "demos" in inner:
            yield ["tests/demos", "-k", name if name != "program" else inner[-1]]
        elif name in ("figures", "panels", "steppers"):
            yield ["tests/figures", "tests/panels"]
        below = f"{own}/{inner[1]}" if len(inner) > 1 else own
        tests = named(own, name) + named(f"{own}/*", name)
        yield tests or named(below if (ROOT / below).is_dir() else own)
        yield [*named(own), *named(f"{own}/*"), "tests/test_reach.py"]
    elif room == "scratch":
        word = inner[0] if inner else name
        tests = sorted((ROOT / "tests" / "scratch").glob("test_*.py"))
        yield [str(test.relative_to(ROOT)) for test in tests if word in test.read_text()]
        yield ["tests/scratch", *named("tests/demos", word)]
    else:
        around = inner[0] if inner else "runner"
        yield named(f"tests/{room}", name) or named(f"tests/{room}", around)
        yield [f"tests/{room}", *(["tests/building"] if room == "checking" else [])]


def named(folder: str, word: str = "") -> list[str]:
    """Test files in a folder whose name holds the word."""
    ending = f"*{word}*.py" if word else "*.py"
    return [str(path.relative_to(ROOT)) for path in sorted(ROOT.glob(f"{folder}/test_{ending}"))]


def copied(folder: Path) -> Path:
    """A copy of the checkout, without what git ignores."""
    listed = ["git", "-C", str(ROOT), "ls-files", "-coz", "--exclude-standard"]
    for name in subprocess.run(listed, capture_output=True, check=True).stdout.decode().split("\0"):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)
    return folder


def noticed(folder: Path, arguments: list[str]) -> str:
    """The last line of a run of pytest that fails, "timeout", or "" where all tests pass."""
    environment = {**os.environ, "PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1"}
    run = subprocess.Popen(
        [sys.executable, "-m", "pytest", *OPTIONS.split(), *arguments],
        cwd=folder, env=environment, start_new_session=True, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    try:
        said, _ = run.communicate(timeout=LIMIT_S)
    except subprocess.TimeoutExpired:
        said = "timeout"
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(run.pid, signal.SIGKILL)
    if run.returncode in (0, 5):  # 5: there is no such test
        return ""
    failures = [line for line in said.splitlines() if line.startswith(("FAILED", "ERROR"))]
    return (failures or said.splitlines() or ["ended"])[-1][:160]


def judged(folder: Path, mutant: Mutant) -> dict[str, object]:
    """The outcome of one mutant, in a copy that is whole again afterwards."""
    path, start_s = folder / mutant.path, time.monotonic()
    source = path.read_bytes()
    path.write_bytes(mutant.source)
    by = ""
    for arguments in stages(mutant):
        if arguments and (by := noticed(folder, arguments)):
            break
    path.write_bytes(source)
    seconds = round(time.monotonic() - start_s, 1)
    return {"name": mutant.name, "room": mutant.room, "by": by, "seconds": seconds}


def report(results: list[dict[str, object]]) -> None:
    """A line per room, then every mutant that no test noticed."""
    print(f"{'':10}{'mutants':>9}{'noticed':>9}{'share':>9}")
    for room in (*ROOMS, "all"):
        found = [bool(each["by"]) for each in results if room in (each["room"], "all")]
        if found:
            print(f"{room:10}{len(found):9}{sum(found):9}{sum(found) / len(found):9.1%}")
    for each in results:
        if not each["by"]:
            print(f"survived: {each['name']}")
    print("by file:", dict(Counter(str(each["by"]).split("::")[0] for each in results)))


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--mutants", type=int, default=200)
    options.add_argument("--seed", type=int, default=9)
    options.add_argument("--workers", type=int, default=2)
    options.add_argument("--list", action="store_true", help="print the mutants, run nothing")
    chosen = options.parse_args()
    mutants = all_mutants(chosen.seed)[: chosen.mutants]
    if chosen.list:
        print(*(mutant.name for mutant in mutants), sep="\n")
        return
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.touch()
    done = {each["name"]: each for each in map(json.loads, RESULTS.read_text().splitlines())}
    copies: SimpleQueue[Path] = SimpleQueue()

    def judge(mutant: Mutant) -> None:
        folder = copies.get()
        result = done[mutant.name] = judged(folder, mutant)
        copies.put(folder)
        with RESULTS.open("a") as file:
            file.write(json.dumps(result) + "\n")
        print(f"{result['seconds']:>7} s  {mutant.name}  {result['by'] or 'SURVIVED'}", flush=True)

    with tempfile.TemporaryDirectory() as name, ThreadPoolExecutor(chosen.workers) as pool:
        for number in range(chosen.workers):
            copies.put(copied(Path(name) / f"copy{number}"))
        list(pool.map(judge, [mutant for mutant in mutants if mutant.name not in done]))
    report([done[mutant.name] for mutant in mutants])


if __name__ == "__main__":
    main()
