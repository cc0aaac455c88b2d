"""The hunt for faults: draws the fault of a case, checks an answer, and records the times."""

import random
from collections.abc import Mapping
from dataclasses import dataclass

from course_lib.checking import progress
from course_lib.checking.exercises import Unanswered, Wrong
from course_lib.checking.helpers import described, require_answer
from course_lib.validation import choice, whole

RANKS = 3
# The name of each kind of fault of the demo `faults`.
CAUSES: Mapping[str, str] = {
    "slow": "straggler",
    "collective": "another collective",
    "port": "taken port",
    "shm": "too little shared memory",
    "interface": "wrong interface",
    "link": "slow link",
    "hang": "hung rank",
    "worker": "dead data loader",
    "memory": "out of memory",
    "weights": "other weights",
}
# Hints by kind, shown after two wrong answers.
LOOK: Mapping[str, str] = {
    "slow": "all updates take equally long. Which rank does not wait in them?",
    "collective": "nobody moves. Compare the line with `dist.` in the stack of each rank.",
    "port": "read the last line of the traceback: what did the system refuse?",
    "shm": "a worker could not pass its batch on. Through which file?",
    "interface": "read the last line: what was looked for and not found?",
    "link": "compare the times of the messages: from which rank do the slow ones come?",
    "hang": "nobody moves. Which rank's stack does not end in torch.distributed?",
    "worker": "in which file of torch was the error raised, and who is at the other end there?",
    "memory": "read the last line of the traceback: how much did it ask for?",
    "weights": "nothing failed, and all is fast. All ranks see the same batch: compare the losses.",
}


@dataclass(frozen=True)
class Fault:
    """The fault of a case: its kind, and the rank that has it."""

    kind: str
    rank: int

    @property
    def cause(self) -> str:
        """The name of the fault, as answers give it."""
        return CAUSES[self.kind]


def drawn(seed: int) -> Fault:
    """The fault of a case. Seeds 0 to 9 cover all ten causes, and so do 10 to 19, and so on.

    Raises ValueError for a seed below 0.
    """
    whole("seed", seed, least=0)
    round_, index = divmod(seed, len(CAUSES))
    kinds = list(CAUSES)
    random.Random(f"hunt {round_}").shuffle(kinds)
    return Fault(kinds[index], random.Random(f"hunt {seed}").randrange(RANKS))


def next_case() -> int:
    """The first of the cases 0 to 9 whose cause has not been found yet; 10 if all have been."""
    records = progress.read()["hunts"]
    seeds = range(len(CAUSES))
    unsolved = (seed for seed in seeds if "best_s" not in records.get(drawn(seed).kind, {}))
    return next(unsolved, len(CAUSES))


def judge(seed: int, rank: object, cause: object) -> None:
    """Raise Wrong, saying which, unless both are right; Unanswered if one is missing."""
    fault = drawn(seed)
    require_answer([rank, cause])
    if rank is None or cause is None:
        raise Unanswered
    if isinstance(rank, bool) or not isinstance(rank, int) or not 0 <= rank < RANKS:
        raise Wrong(f"wants a rank from 0 to {RANKS - 1}, got {described(rank)}")
    try:
        choice("cause", cause, CAUSES.values())
    except ValueError as error:
        raise Wrong(str(error)) from None
    right = rank == fault.rank, cause == fault.cause
    if right == (True, True):
        return
    raise Wrong(
        {
            (True, False): "the rank is right, the cause is not",
            (False, True): "the cause is right, the rank is not",
            (False, False): "neither the rank nor the cause is right",
        }[right]
    )


def found(kind: str, seconds: float) -> float:
    """Record the learner's time for this kind of fault; return the best one, in seconds."""

    def better(record: dict[str, object]) -> None:
        before = record.get("best_s", seconds)
        assert isinstance(before, int | float)
        record.update(best_s=min(before, seconds), at=progress.now())

    return float(progress.update("hunts", kind, better)["best_s"])


def by_doctor(kind: str, seconds: float) -> None:
    """Record how many seconds the doctor took to find this kind of fault."""
    progress.update("hunts", kind, lambda record: record.update(doctor_s=seconds))


def table() -> str:
    """A text table with a line per cause: the learner's best time, and the doctor's."""
    records = progress.read()["hunts"]
    width = max(map(len, CAUSES.values()))
    lines = [f"{'cause':<{width}}  {'you':>8}  {'the doctor':>10}"]
    for kind, cause in CAUSES.items():
        yours, doctor = (_seconds(records.get(kind, {}).get(key)) for key in ("best_s", "doctor_s"))
        lines.append(f"{cause:<{width}}  {yours:>8}  {doctor:>10}")
    count = sum("best_s" in records.get(kind, {}) for kind in CAUSES)
    return "\n".join([*lines, f"{count} of {len(CAUSES)} found"])


def _seconds(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{1e3 * value:.0f} ms" if value < 1 else f"{value:.0f} s"
