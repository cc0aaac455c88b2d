"""What can be moved in a panel: a name, a value, and the values that are offered.

As the default of a panel's parameter a control stands for the value that it starts with: so the
functions that make one say that they return Any, as `dataclasses.field` does.
"""

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from course_lib import validation
from course_lib.theory.inputs.hardware import Link
from course_lib.theory.inputs.models import MODELS
from course_lib.theory.inputs.units import GB

Options = Sequence[tuple[str, Any]]  # text, value


@dataclass
class Control:
    """One control; `control.value = …` moves it, as the learner's hand does on the screen.

    `kind` says how it looks: "number" (a slider with a box to type in), "slider" (over texts),
    "choice" (a list), "flag" (a box to tick) or "steps" (a slider with a play button).
    """

    kind: str
    label: str
    options: Options
    index: int
    unit: str = ""
    moved: Callable[[], None] = field(default=lambda: None, repr=False)

    @property
    def value(self) -> Any:
        """The value that is chosen now."""
        return self.options[self.index][1]

    @value.setter
    def value(self, value: Any) -> None:
        self.index = place(self.label, value, self.options)
        self.moved()

    def at(self, value: Any) -> "Control":
        """Another one like this, at `value`. Raises ValueError where it is not offered."""
        if self.kind == "flag":
            validation.flag(self.label, value)
        return replace(self, index=place(self.label, value, self.options))

    def spec(self) -> dict[str, Any]:
        """What the browser needs to draw it."""
        spec = {"kind": self.kind, "label": self.label, "unit": self.unit}
        if isinstance(self.options, Numbers):
            return spec | {"least": self.options.least, "most": self.options.most}
        return spec | {"texts": [text for text, _ in self.options]}


class Numbers(Sequence[tuple[str, int]]):
    """The whole numbers least … most as options; 10,000 of them take no room."""

    def __init__(self, least: int, most: int) -> None:
        self.least, self.most = least, most

    def __len__(self) -> int:
        return self.most - self.least + 1

    def __getitem__(self, index: Any) -> Any:
        number = range(self.least, self.most + 1)[index]
        return f"{number:,}", number


def whole(name: str, value: int, least: int, most: int, unit: str = "") -> Any:
    """A slider over the whole numbers least … most with a number box.

    Raises ValueError for a starting value out of range.
    """
    options = Numbers(least, most)
    return Control("number", name, options, place(name, value, options), unit)


def powers_of_two(name: str, value: int, least: int, most: int, unit: str = "") -> Any:
    """A slider over the powers of two least … most.

    Raises ValueError for a starting value that is not one of them.
    """
    options = [least << step for step in range((most // least).bit_length())]
    return listed(name, value, {f"{option:,}": option for option in options}, unit)


def listed(name: str, value: Hashable, options: Mapping[str, Any], unit: str = "") -> Any:
    """A slider over the values of `options`, text: value.

    Raises ValueError for a starting value that is not in it.
    """
    pairs = list(options.items())
    return Control("slider", name, pairs, place(name, value, pairs), unit)


def choice(name: str, value: Hashable, options: Sequence[Any] | Mapping[str, Any]) -> Any:
    """A list to choose from; a mapping gives the text of each value.

    Raises ValueError for a starting value that is not in it.
    """
    pairs = (
        list(options.items()) if isinstance(options, Mapping) else [(str(o), o) for o in options]
    )
    return Control("choice", name, pairs, place(name, value, pairs))


def flag(name: str, value: bool) -> Any:
    """A box to tick. Raises ValueError unless `value` is True or False."""
    validation.flag(name, value)
    return Control("flag", name, [("no", False), ("yes", True)], int(value))


def steps() -> Control:
    """A slider over the steps of a story, of which there is one until the story is known."""
    return Control("steps", "step", Numbers(0, 0), 0)


def place(name: str, value: object, options: Options) -> int:
    """The index of `value` in `options`. Raises ValueError, naming what is offered."""
    if isinstance(options, Numbers):
        validation.whole(name, value, options.least, options.most)
        return int(value) - options.least  # type: ignore[call-overload, no-any-return]
    offered = [option for _, option in options]
    if value in offered:
        return offered.index(value)
    listed = ", ".join(map(str, offered))
    raise ValueError(f"{name} {value!r} is not one of {listed}: choose one of them")


# --- what several panels offer: models, links, sizes of GPU memory --------------------------------

DENSE = [name for name, shape in MODELS.items() if not shape.experts]

# As the data sheets print them, read as 10^9 bytes, the smaller of the two readings. PyTorch
# reports about 6 % more on an A100 or H100 (theory.inputs.hardware): left for what is no tensor.
GPU_MEMORY_BYTES = {
    "RTX 4090 24 GB": 24 * GB,  # NVIDIA Ada architecture whitepaper, appendix A
    "A100 40 GB": 40 * GB,  # NVIDIA A100 data sheet
    "A100, H100 80 GB": 80 * GB,  # NVIDIA A100 and H100 data sheets
    "H200 141 GB": 141 * GB,  # NVIDIA H200 data sheet
}


def ethernet(gbit: int, latency_s: float = 50e-6) -> Link:
    """An Ethernet of so many Gb/s; its latency is assumed, for comparison."""
    return Link(f"Ethernet {gbit} Gb/s", gbit * 1e9 / 8, latency_s)


def by_name(*links: Link) -> dict[str, Link]:
    """Links as a control lists them."""
    return {link.name: link for link in links}
