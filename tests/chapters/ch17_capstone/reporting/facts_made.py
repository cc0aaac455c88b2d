"""Facts of learners who never were, for tests of checks and pages."""

from dataclasses import replace

from course_lib.chapters.ch17_capstone.reporting.facts import Chapter, Facts
from course_lib.chapters.ch17_capstone.reporting.guesses import guesses
from course_lib.chapters.ch17_capstone.reporting.kept import Candidate, KeptPlan, KeptRun, Row
from course_lib.chapters.ch17_capstone.reporting.texts import Texts

PREDICTIONS = {
    "13.tp_bytes": {"yours": 26_624, "unit": "B", "question": "tp <bytes>?"}
    | dict.fromkeys(("found", "theory", "measured"), 106_496),
    "17.time": {"yours": 2, "found": 8, "theory": 0.5, "measured": 8, "question": "8 ranks / 1?"},
    "5.days": {"yours": 37, "found": 37, "theory": 37, "unit": "days"},
    "2.variance": {"yours": 3},
}
PLAN = KeptPlan(
    at="2026-11-22T18:00:00+00:00",
    question="llama2-70b on 512 H100-SXM",
    assumptions=["optimistic", "cautious"],
    capacity_bytes=80_000_000_000,
    why="fits: stage 0",
    mine=Candidate("mine", "tp 4, pp 2", 68_000_000_000, [7.9, 8.0], [0.15, 0.02]),
    others=[Candidate("the sturdiest", "tp 2, pp 4", 79_000_000_000, [7.5, 8.5], [0.09, 0.08])],
    refusals={"megatron": "", "accelerate": "accelerate cannot run tp=4: it has no pipeline; take"},
)
RUN = KeptRun(
    at="2026-11-22T18:00:00+00:00",
    ranks=8,
    mesh="dp 2 × tp 2 × pp 2",
    model="4x64x4",
    updates=6,
    seconds=0.17,
    loss_gap=1e-7,
    gradient_gap=3e-7,
    yours=["Mesh"],
    courses=["Pipeline"],
    rows=[Row("tp all-reduce", 294_912, 294_912, 36, 36), Row("stored: weights", 8, 8)],
)
WORDS = Texts("Why: " + "word " * 40, {"17.time": "eight processes share two cores here"})
PART = {"build": "13.12", "title": "a mesh of ranks", "names": ["Mesh"], "file": "mine/mesh.py"}
PART |= {"lines": 30, "lines_of_the_course": 40, "race": "making it", "laps": ["yours 1 ms"]}
FULL = Facts(
    at="2026-11-22T18:00:00+00:00",
    name="Ada <b>李</b>",
    guesses=guesses({k: v for k, v in PREDICTIONS.items() if "found" in v}),
    chapters=[Chapter(1, exercises=9, passed=8, seen=1)],
    verdicts={"17.1": "48 s holds only if the peak is 330 TFLOP/s"},
    parts=[PART],
    plan=PLAN,
    run=RUN,
    texts=WORDS,
)
EMPTY = replace(
    FULL,
    name="",
    guesses=[],
    chapters=[Chapter(1, exercises=9, passed=0, seen=0)],
    verdicts={},
    parts=[PART | {"file": None, "lines": None}],
    plan=None,
    run=None,
    texts=Texts("", {}),
)
