"""The options of a demo: the fields of a frozen dataclass become command-line arguments."""

from abc import ABC, abstractmethod
from collections.abc import Collection
from dataclasses import dataclass, field, fields
from typing import Any, TypeVar

from course_lib.demos.shared.parts import WHOSE
from course_lib.demos.shared.training import Run, Training
from course_lib.validation import choice, flag, number, whole

R = TypeVar("R", bound=Run)


def option(default: Any, about: str, *, among: Collection[str] = (), **limits: float) -> Any:
    """A field of an Options dataclass, with its help text, and what it may be.

    `among`: the words. `limits`: `least` and `most` of a whole number, also `above` of another.
    """
    return field(default=default, metadata={"help": about, "among": among, "limits": limits})


def whose_parts(about: str = "whose parts run") -> Any:
    """The option `parts`."""
    return option("course", f"{about}: course, or mine where they are built", among=WHOSE)


@dataclass(frozen=True)
class DemoOptions:
    """The options of every demo. Raises ValueError for a value that may not be."""

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
    """The options of every demo that trains; a demo adds its own, and other defaults.

    Raises ValueError, when made, for a training that is not possible.
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
        """What is trained."""

    def fill(self, kind: type[R], **more: Any) -> R:
        """A training run of this `kind`: the options that it has as well, and `more`."""
        names = (entry.name for entry in fields(kind))
        given = {name: getattr(self, name) for name in names if hasattr(self, name)}
        return kind(**given | more)


@dataclass(frozen=True)
class BatchOptions(TrainingOptions):
    """The options of a demo that divides the batches of a GPT over its ranks."""

    batch: int = option(8, "samples of all ranks in one update")

    def training(self) -> Training:
        """What is trained."""
        return self.fill(Training)


@dataclass(frozen=True)
class MicroBatchOptions(TrainingOptions):
    """The options of a demo whose batch grows with the number of its ranks, as on a cluster."""

    micro_batch: int = option(4, "samples of one rank in one forward pass", least=1)

    def training(self, ranks: int = 1) -> Training:
        """What is trained: one micro-batch of each rank in one update."""
        return self.fill(Training, batch=self.micro_batch * ranks)
