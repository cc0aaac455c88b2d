"""The options of demos, and the entry point that runs a demo as a program.

The fields of a frozen dataclass become command-line arguments; results print as text or JSON.
"""

import argparse
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, NoReturn, TypeVar

from course_lib import launch, mine
from course_lib.arguments import Parser
from course_lib.demos.shared.result import render
from course_lib.demos.shared.training import Run, Training
from course_lib.validation import choice, flag, number, whole

R = TypeVar("R", bound=Run)
WHOSE = ("course", "mine")


def with_yours(parts: str, *names: str) -> str:
    """ ", with your DDP": which of `names` run the learner's version; "" if none does."""
    built = [name for name in names if parts == "mine" and mine.is_mine(name)]
    return f", with your {', '.join(built)}" if built else ""


def where_to_look(traceback: str, record: str | None, parts: str) -> str:
    """A hint after a failure: the line in the learner's own part, if it is in the traceback."""
    if places := mine.places(traceback):
        also = f", or see `course diagnose {record}`" if record else ""
        return f"your part was at {'; and at '.join(places)}: mend it{also}"
    if record:
        return f"see `course diagnose {record}`"
    if parts == "mine":
        return "your parts took part: does it run with `--parts course`?"
    return "see `course doctor`"


def option(default: Any, about: str, *, among: Collection[str] = (), **limits: float) -> Any:
    """A field of an Options dataclass, with its help text and its allowed values.

    `among`: the allowed words. `limits`: `least` and `most` of an int; a float also has `above`.
    """
    return field(default=default, metadata={"help": about, "among": among, "limits": limits})


def whose_parts(about: str = "whose parts run") -> Any:
    """The option `parts`, which selects the course's or the learner's parts."""
    return option("course", f"{about}: course, or mine where they are built", among=WHOSE)


@dataclass(frozen=True)
class DemoOptions:
    """Base class of all demos' options. Raises ValueError for a value that is not allowed."""

    json: bool = option(False, "print the result as JSON")

    def __post_init__(self) -> None:
        for entry in fields(self):
            value, limits = getattr(self, entry.name), entry.metadata["limits"]
            if isinstance(entry.default, bool):
                flag(entry.name, value)
            elif entry.metadata["among"]:
                choice(entry.name, value, entry.metadata["among"])
            elif limits:
                check = whole if isinstance(entry.default, int) else number
                check(entry.name, value, **limits)


@dataclass(frozen=True)
class TrainingOptions(DemoOptions, ABC):
    """Options of demos that train; a demo adds fields and overrides defaults.

    Raises ValueError on construction for an impossible training run.
    """

    steps: int = option(5, "optimizer updates")
    model: str = option("tiny", "tiny, small, medium, gpt2 or LAYERSxHIDDENxHEADS")
    sequence: int = option(32, "characters in a sample")
    learning_rate: float = option(3e-3, "the optimizer's learning rate")
    seed: int = option(0, "seed of the weights")

    def __post_init__(self) -> None:
        super().__post_init__()
        self.training()

    @abstractmethod
    def training(self) -> Run:
        """The training run."""

    def fill(self, kind: type[R], **more: Any) -> R:
        """A training run of this `kind` from the options of the same names, and `more`."""
        names = (entry.name for entry in fields(kind))
        shared = {name: getattr(self, name) for name in names if hasattr(self, name)}
        return kind(**shared | more)


@dataclass(frozen=True)
class BatchOptions(TrainingOptions):
    """The options of a demo that divides the batches of a GPT over its ranks."""

    batch: int = option(8, "samples of all ranks in one update")

    def training(self) -> Training:
        """The training run."""
        return self.fill(Training)


@dataclass(frozen=True)
class MicroBatchOptions(TrainingOptions):
    """The options of a demo whose batch grows with the number of its ranks, as on a cluster."""

    micro_batch: int = option(4, "samples of one rank in one forward pass", least=1)

    def training(self, ranks: int = 1) -> Training:
        """The training run, with one micro-batch per rank in each update."""
        return self.fill(Training, batch=self.micro_batch * ranks)


Options = TypeVar("Options", bound=DemoOptions)


class _Formatter(argparse.ArgumentDefaultsHelpFormatter):
    """Shows the default of every option that has one."""

    def _get_help_string(self, action: argparse.Action) -> str | None:
        return action.help if action.default is None else super()._get_help_string(action)


def parse(
    demo: str,
    options: type[Options],
    argv: Sequence[str],
    about: str | None,
    launching: Callable[[Parser], object] | None = None,
) -> Options:
    """Build `options` from `argv`: the field `micro_batch: int` becomes `--micro-batch N`.

    A bool becomes a pair such as `--shuffle` and `--no-shuffle`. A bad value exits with a message
    and status 2. `launching` adds the launcher's options for the help text only: they have been
    parsed already.
    """
    parser = Parser(
        prog=f"course demo {demo}",
        description=about,
        formatter_class=_Formatter,
    )
    if launching:
        launching(parser)
    for entry in fields(options):
        kind: dict[str, Any] = {"type": type(entry.default)}
        if isinstance(entry.default, bool):
            kind = {"action": argparse.BooleanOptionalAction}
        name = f"--{entry.name.replace('_', '-')}"
        parser.add_argument(name, default=entry.default, help=entry.metadata["help"], **kind)
    parsed, others = parser.parse_known_args(argv)
    if others:
        parser.refuse(others)
    try:
        return options(**{entry.name: getattr(parsed, entry.name) for entry in fields(options)})
    except ValueError as problem:
        parser.exit(2, f"{parser.prog}: {problem}\n")


def run_as_program(main: Callable[[Options], Any], options: Options) -> NoReturn:
    """Run `main(options)` on this rank, alone or under torchrun; rank 0 prints the result."""

    def main_and_print(options: Options) -> None:
        result = main(options)
        if launch.init().rank == 0:
            print(render(result, options.json), flush=True)

    launch.program(main_and_print, options)
