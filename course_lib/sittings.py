"""The sittings of the course, a text and a notebook each: what they ask, need, and how long.

A text begins with a raw cell of data:

    # %% [raw] tags=["sitting"]
    # question: Why does a 13.5 GB model not train in 80 GB?
    # importance: 5
    # difficulty: 3
    # group: alone
    # needs: 3.1, 7
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import groupby
from pathlib import Path

from course_lib import chapters
from course_lib.texts import TEXTS, Cell, asked_in, cells_of, folds

# Minutes of an honest learner. Fitted to four careful readers' estimates of 18 chapters (91,000
# words, 1,200 cells, 189 exercises, 109 hours): the mean error of a chapter is 15 %, the largest
# 37 %. Nobody was timed.
WORDS_PER_MINUTE = 100
CELL_MIN, FOLDED_MIN, PREDICTION_MIN = 1.2, 0.4, 3.0
EXERCISE_MIN = {"calculate": 8, "predict": 8, "debug": 10, "implement": 10, "build": 60}
DEEPER = re.compile(r"(#+) (?:\d+\.\d+ )?Deeper: ")
_HEADING = re.compile(r"(#+) ")
_PREDICTION = re.compile(r"\bpredict\(\s*\"([^\"]+)\"")
_KEYS = ("question", "importance", "difficulty", "group", "needs")


@dataclass(frozen=True)
class Task:
    """An exercise as a learner plans it; `importance` and `difficulty` are 1 to 5."""

    id: str
    kind: str
    title: str
    importance: int
    difficulty: int
    group: bool
    words: int

    @property
    def minutes(self) -> float:
        """Time to read, solve and mend: by kind, scaled by difficulty (3 is the mean)."""
        scale = 0.4 + 0.2 * self.difficulty
        return EXERCISE_MIN[self.kind] * scale + self.words / WORDS_PER_MINUTE


@dataclass(frozen=True)
class Sitting:
    """One notebook. `needs`: sittings ("9.1") or chapters ("7") to be done before it.

    `reading`: minutes of text, runs and predictions without the folded parts; `folded`: of those.
    Raises ValueError if importance or difficulty is not 1 to 5, or the question is none.
    """

    name: str
    title: str
    question: str
    importance: int
    difficulty: int
    group: bool
    needs: tuple[str, ...]
    reading: float
    folded: float
    exercises: tuple[Task, ...] = ()
    predictions: tuple[str, ...] = field(default=(), repr=False)

    def __post_init__(self) -> None:
        if not self.question.endswith("?"):
            raise ValueError(f"question of {self.name} must end in '?': {self.question!r}")
        for name in ("importance", "difficulty"):
            if getattr(self, name) not in range(1, 6):
                raise ValueError(f"{name} of {self.name} must be 1 to 5: {getattr(self, name)}")

    @property
    def chapter(self) -> int:
        """The number of its chapter."""
        return int(self.name[:2])

    @property
    def number(self) -> str:
        """ "9.1": the first sitting of chapter 9; "5" if the chapter is one sitting."""
        part = re.match(r"\d\d_(\d)_", self.name)
        return f"{self.chapter}.{part[1]}" if part else str(self.chapter)

    @property
    def is_deeper(self) -> bool:
        """Whether a first reader can leave all of it out."""
        return self.name.endswith("_deeper")


def reading_minutes(cells: Sequence[Cell], difficulty: int) -> float:
    """Minutes to read and run cells, which are no exercises: more where it is difficult."""
    words = sum(len(cell.source.split()) for cell in cells if cell.kind == "markdown")
    code = [cell for cell in cells if cell.kind == "code"]
    run = sum(FOLDED_MIN if folds(cell) else CELL_MIN for cell in code)
    guesses = sum(len(_PREDICTION.findall(cell.source)) for cell in code)
    minutes = words / WORDS_PER_MINUTE + run + PREDICTION_MIN * guesses
    return minutes * (0.7 + 0.1 * difficulty)


def deeper_parts(cells: Sequence[Cell]) -> Iterator[list[Cell]]:
    """The cells from each heading `Deeper: …` up to the next heading of its level or a higher."""
    part: list[Cell] = []
    level = 0
    for cell in cells:
        heading = _HEADING.match(cell.source) if cell.kind == "markdown" else None
        if heading and part and len(heading[1]) <= level:
            yield part
            part = []
        deeper = DEEPER.match(cell.source) if heading else None
        if deeper and not part:
            level = len(deeper[1])
            part = [cell]
        elif part:
            part.append(cell)
    if part:
        yield part


def sitting_of(text: Path) -> Sitting:
    """The sitting that a text is. Raises ValueError if its data are missing or wrong."""
    return parsed(text.stem, text.read_text(encoding="utf-8"))


@cache
def parsed(name: str, text: str) -> Sitting:
    """The sitting `name` from its text. Raises ValueError if its data are missing or wrong."""
    cells = list(cells_of(text))
    data = _data(name, cells)
    own = [cell for cell in cells if "exercise" not in cell.tags]
    folded = [cell for part in deeper_parts(own) for cell in part]
    thread = [cell for cell in own if cell not in folded]
    title = re.search(r"^# (?:\d+ )?(.+)$", own[1].source, re.M)
    difficulty = int(data["difficulty"])
    return Sitting(
        name,
        title[1] if title else name,
        data["question"],
        int(data["importance"]),
        difficulty,
        data["group"] == "group",
        tuple(filter(None, data.get("needs", "").split(", "))),
        reading_minutes(thread, difficulty),
        reading_minutes(folded, difficulty),
        tuple(_tasks(text, cells)),
        tuple(key for cell in thread for key in _PREDICTION.findall(cell.source)),
    )


def _data(name: str, cells: Sequence[Cell]) -> dict[str, str]:
    lines = cells[0].source.split("\n") if "sitting" in cells[0].tags else []
    data = dict(line.split(": ", 1) for line in lines)
    for key in _KEYS[:-1]:
        if key not in data:
            raise ValueError(f"{name} says no {key}: begin it with a raw cell tagged `sitting`")
    for key in data:
        if key not in _KEYS:
            raise ValueError(f"{name} says {key!r}: a sitting has {', '.join(_KEYS)}")
    return data


def _tasks(text: str, cells: Sequence[Cell]) -> Iterator[Task]:
    words: dict[str, int] = {}
    for cell in cells:
        if cell.kind == "markdown" and (heading := re.match(r"### (\d+\.\d+) ", cell.source)):
            words[heading[1]] = len(cell.source.split())
    for key, each in asked_in(text).items():
        rated = (each.importance, each.difficulty, each.group)
        yield Task(key, each.kind, each.title, *rated, words[key])


@cache
def sittings() -> tuple[Sitting, ...]:
    """All sittings of the course, in order."""
    return tuple(sitting_of(text) for text in chapters.files(TEXTS).values())


# --- Routes ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Route:
    """A way through the course, of at most `budget` hours.

    `only` and `exercises` name its sittings and exercises. Without names it takes all sittings that
    are not deeper, and exercises of importance 4 and 5 (of builds, 5). `complete`: it takes all.
    """

    name: str
    about: str
    budget: float = float("inf")
    only: tuple[str, ...] = ()
    exercises: tuple[str, ...] = ()
    complete: bool = False

    def sittings(self) -> list[Sitting]:
        """Its sittings, in order."""
        if self.only:
            return [sitting for sitting in sittings() if sitting.number in self.only]
        return [sitting for sitting in sittings() if self.complete or not sitting.is_deeper]

    def tasks(self, sitting: Sitting) -> list[Task]:
        """Its exercises in one of its sittings."""
        if self.only:
            return [task for task in sitting.exercises if task.id in self.exercises]
        return [
            task
            for task in sitting.exercises
            if self.complete or task.importance >= 4 + (task.kind == "build")
        ]

    def minutes(self, sitting: Sitting) -> float:
        """Minutes of one of its sittings, exercises included."""
        folded = sitting.folded if self.complete else 0
        return sitting.reading + folded + sum(task.minutes for task in self.tasks(sitting))

    @property
    def hours(self) -> float:
        """All of it, in hours."""
        return sum(map(self.minutes, self.sittings())) / 60


_TWO_DAYS = ("1", "2.1", "3.1", "3.2", "6.1", "6.2", "7.1", "7.2", "8.1", "8.2", "9.1", "9.2")
ROUTES = {
    route.name: route
    for route in (
        Route("evening", "from a step to your own DDP on real ranks", 2.5, ("1", "7.1"), ("7.10",)),
        Route(
            "two-days",
            "memory, communication, DDP, ZeRO, and your own FSDP",
            14,
            _TWO_DAYS,
            ("2.10", "7.10", "9.11"),
        ),
        Route("thread", "everything that nobody should skip", 45),
        Route("everything", "all of it", complete=True),
    )
}


class Overview:
    """A table of the sittings with their minutes, and one of the routes: the map of chapter 0."""

    def _repr_markdown_(self) -> str:
        lines = ["| | sittings, and the minutes of each | exercises, minutes |", "|---|---|---|"]
        for chapter, own in groupby(sittings(), lambda sitting: sitting.chapter):
            parts = list(own)
            links = [f"[{each.title}]({each.name}.ipynb) {each.reading:.0f}" for each in parts]
            exercises = sum(task.minutes for each in parts for task in each.exercises)
            lines.append(f"| {chapter} | {' · '.join(links)} | {exercises:.0f} |")
        lines += ["", "| route | what it leads to | sittings | hours |", "|---|---|---|---|"]
        lines += [f"| {' | '.join(row)} |" for row in route_rows()]
        return "\n".join(lines)

    __repr__ = _repr_markdown_


def route_rows() -> list[tuple[str, str, str, str]]:
    """Name, aim, number of sittings and hours of each route."""
    return [
        (f"`{each.name}`", each.about, str(len(each.sittings())), f"{each.hours:.2g}")
        for each in ROUTES.values()
    ]
