"""Several runs of a demo within one launch: a launch takes longer than most of the runs."""

import re
from pathlib import Path

from all_rooms import beside

from course_lib import demos, launch, mine


def runs(name, cases, ranks=2, **base):
    """Rank 0's result of each case of options, by its key; `base` are options of all cases."""
    return by_rank(name, cases, ranks, **base)[0]


def by_rank(name, cases, ranks=2, **base):
    """The results of each rank, by case."""
    return launch.run(_runs, name, {**cases}, base, ranks=ranks, stream=False)


def _runs(name, cases, base):
    demo = demos.load(name)
    return {key: demo.main(demo.Options(**{**base, **case})) for key, case in cases.items()}


def refused(cases, ranks=2):
    """Each demo with these options is refused by every rank in a sentence that matches."""
    asked = [(name, options) for name, options, _ in cases]
    for sentences in launch.run(_sentences, asked, ranks=ranks, stream=False, timeout_s=240):
        for (name, options, pattern), said in zip(cases, sentences, strict=True):
            assert re.search(pattern, said), f"{name} {options}: {said}"


def _sentences(asked):
    return [sentence(_started, name, options) for name, options in asked]


def _started(name, options):
    demo = demos.load(name)
    demo.main(demo.Options(**options))


def sentence(call, *arguments):
    """What a call is refused with, or "accepted"; on a rank it is the others' turn afterwards."""
    try:
        call(*arguments)
    except (ValueError, AssertionError, RuntimeError) as problem:
        return str(problem)
    return "accepted"


def explained(make, cases):
    """`make` refuses each case with a ValueError that matches its pattern."""
    for case, pattern in cases:
        said = sentence(lambda case=case: make(**case))
        assert re.search(pattern, said), f"{case}: {said}"


def keep(home, file, text):
    """Keep a part as a learner's, in the folder that COURSE_HOME names."""
    (home / "mine").mkdir(exist_ok=True)
    (home / "mine" / f"{file}.py").write_text(text)


def keep_courses(home, file, mistake=""):
    """Keep the course's own parts as the learner's, with a mistake at the end of the file."""
    part = mine.BY_FILE[file]
    keep(home, file, f"from {part.home} import {', '.join(part.names)}\n{mistake}")


def keep_mine(home, monkeypatch, file, change=("", "")):
    """Keep a right build of another form (RIGHT in its tests) as the learner's, with a change."""
    tests = beside(f"wrong_{file}")
    text = Path(tests.__file__).read_text(encoding="utf-8").replace(*change)
    (home / "mine").mkdir(exist_ok=True)
    (home / "mine" / f"{file}.py").write_text(text + tests.AS_MINE, encoding="utf-8")
    monkeypatch.setenv("COURSE_HOME", str(home))
