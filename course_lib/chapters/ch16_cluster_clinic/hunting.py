"""The hunt: one of three real ranks is broken; find which one, and why, from their output.

    case = hunt(3)                                     # starts the ranks, and then the clock
    case.answer(rank=1, cause="straggler")
    case.doctor()                                      # what `course diagnose` says, and how soon

A case is a fault of the demo `faults` in a program that logs its steps (`demos.faults.watched`);
stack frames that would reveal the fault are replaced by those of an invented train.py.
"""

import contextlib
import io
import re
import tempfile
import time
from pathlib import Path

from course_lib import launch, notebook
from course_lib.chapters.ch16_cluster_clinic import diagnosing
from course_lib.checking import cards, hunts
from course_lib.checking.exercises import Unanswered, Wrong
from course_lib.checking.hunts import next_case, table

__all__ = ["Case", "hunt", "next_case", "table"]

LIMIT_S = 6.0  # time limit of a launch; ranks are ready after 2 s on a busy machine
_HINT_AFTER, _TELL_AFTER = 2, 4  # number of wrong answers


def hunt(seed: int, how: str = "case.answer(rank=…, cause=…)") -> "Case":
    """Run case `seed`, print the output of its launch, and start the clock.

    `how`: printed instruction for giving an answer. Raises ValueError for a seed below 0.
    """
    hunts.drawn(seed)
    print(
        f"case {seed}: three ranks train for four updates, and one of them is broken.\n", flush=True
    )
    case = Case(seed)
    print(case.output)
    causes = ", ".join(repr(cause) for cause in hunts.CAUSES.values())
    print(f"\nWhich rank, and why? {how} with one of {causes}.")
    return case


class Case:
    """A launch with one fault, and its `output`."""

    def __init__(self, seed: int) -> None:
        self._fault = hunts.drawn(seed)
        self.seed = seed
        self.output = _printed(self._fault)
        self._wrong = 0
        self.over = False  # solved, or the solution was shown
        self.found = False
        self._start_s = time.monotonic()

    def answer(self, rank: int | None = None, cause: str | None = None) -> None:
        """Print whether rank and cause are both right; if they are, record the time."""
        seconds = time.monotonic() - self._start_s
        try:
            hunts.judge(self.seed, rank, cause)
        except Unanswered:
            _say("todo", "name a rank and a cause: the clock runs")
        except Wrong as wrong:
            self._refuse(str(wrong))
        else:
            self._praise(seconds)

    def _refuse(self, sentence: str) -> None:
        self._wrong += "wants" not in sentence
        help_ = ""
        if self._wrong >= _TELL_AFTER:
            help_ = self._solution()
        elif self._wrong >= _HINT_AFTER:
            help_ = f"Hint: {self._look}"
        _say("fail", sentence, help_)

    def give_up(self) -> None:
        """Print the solution; later answers are not timed."""
        print(self._solution())

    def _solution(self) -> str:
        self.over = True
        return f"It is rank {self._fault.rank}: {self._fault.cause}. {self._look}"

    @property
    def _look(self) -> str:
        look = hunts.LOOK[self._fault.kind]
        return look[0].upper() + look[1:]

    def _praise(self, seconds: float) -> None:
        said = f"rank {self._fault.rank}: {self._fault.cause}"
        if not self.over:
            self.over = self.found = True
            best_s = hunts.found(self._fault.kind, seconds)
            said += f", found in {seconds:.0f} s (your best for this cause: {best_s:.0f} s)"
        _say("pass", said)

    def doctor(self) -> None:
        """Run the case again with a record, and print the result and time of `course diagnose`.

        This reveals the solution: later answers are not timed.
        """
        self.over = True
        with tempfile.TemporaryDirectory(prefix="course_hunt_") as folder:
            start_s = time.monotonic()
            _printed(self._fault, record=Path(folder))
            ran_s, start_s = time.monotonic() - start_s, time.monotonic()
            diagnosis = diagnosing.diagnose(folder)
            seconds = time.monotonic() - start_s
        first = diagnosis.report().partition("\n")[0]
        print(f"The doctor, {1e3 * seconds:.0f} ms after a launch of {ran_s:.0f} s:\n{first}")
        if diagnosis.finding.ranks == (self._fault.rank,):
            hunts.by_doctor(self._fault.kind, seconds)
        else:
            print("It reads who called what and where each rank stood: this needed somebody else.")


_LOOKS = {
    "todo": ("○", "To do", cards.PLAIN),
    "fail": ("✗", "Not right yet", cards.BAD),
    "pass": ("✓", "Right", cards.GOOD),
}


def _say(state: str, sentence: str, help_: str = "") -> None:
    """Show a card in a notebook; elsewhere print a line, and a second one for `help_`."""
    icon, word, edge = _LOOKS[state]
    parts = [cards.head(icon, word, ""), cards.line(sentence), cards.line(help_, quiet=True)]
    text = "\n".join(filter(None, (f"[{state}] {sentence}", help_)))
    notebook.show(cards.card(f"{word}: {sentence}", parts, edge), text)


def _printed(fault: hunts.Fault, record: Path | None = None) -> str:
    """The disguised output of one launch with this fault, including how it ends."""
    said = _launched(fault, LIMIT_S, record)
    if "update 1: " not in said:  # a very busy machine: the ranks were not even ready
        said = _launched(fault, 5 * LIMIT_S, record)
    return "\n".join(_in_order(disguised(said).splitlines())).strip()


def _launched(fault: hunts.Fault, limit_s: float, record: Path | None) -> str:
    from course_lib.demos.faults import watched  # with torch

    said = io.StringIO()
    unseen = io.StringIO()  # progress lines, which a cell would show as errors
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(unseen):
        try:
            launch.run(
                watched.main,
                fault.kind,
                fault.rank,
                ranks=hunts.RANKS,
                timeout_s=limit_s,
                record=record,
            )
            print("all ranks have finished")
        except launch.RankFailed as failed:
            print(f"RankFailed: {failed}")
    return said.getvalue()


_UPDATE = re.compile(r"\[rank (?P<rank>\d+)\] update (?P<step>\d+): ")


def _in_order(lines: list[str]) -> list[str]:
    """The lines of updates sorted by update and rank, followed by all others."""
    matches = [match for line in lines if (match := _UPDATE.match(line))]
    updates = sorted(matches, key=lambda match: (int(match["step"]), int(match["rank"])))
    return [match.string for match in updates] + [line for line in lines if not _UPDATE.match(line)]


_FRAME = re.compile(r'^(?P<indent>\s*)File "[^"]*[/\\]course_lib[/\\]demos[/\\]faults[/\\][^"]+"')
_OTHER_FRAME = re.compile(r'^\s*File "')
_MARKS = re.compile(r"^\s*[~^]+\s*$")


def disguised(text: str) -> str:
    """Replace stack frames of the demo, which would reveal the fault, by frames of train.py.

    Of their source, only lines that call torch.distributed are kept, for comparison.
    """
    lines: list[str] = []
    ours = False  # whether the last frame belongs to the demo
    for line in text.splitlines():
        if match := _FRAME.match(line):
            if not ours:
                lines.append(f'{match["indent"]}File "train.py", in update')
            ours = True
        elif ours and (_MARKS.match(line) or _is_source(line)):
            if "dist." in line:
                lines.append(line)
        else:
            ours = False
            lines.append(line)
    return "\n".join(lines)


def _is_source(line: str) -> bool:
    """Whether this is a source line below a stack frame, which is indented further."""
    return line.startswith("    ") and not _OTHER_FRAME.match(line)
