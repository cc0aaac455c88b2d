"""The controls of panels: a name, the current value, and the values on offer.

A control is the default of a panel function's parameter, in place of its starting value, so the
functions that create one are annotated to return Any, as `dataclasses.field` is.
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
    """One control; setting `control.value` moves it, as a learner does on the screen.

    `kind` is its widget: "number" (a slider with a number box), "slider" (over texts), "choice"
    (a list), "flag" (a check box) or "steps" (a slider with a play button).
    """

    kind: str
    label: str
    options: Options
    index: int
    unit: str = ""
    moved: Callable[[], None] = field(default=lambda: None, repr=False)

    @property
    def value(self) -> Any:
        """The current value."""
        return self.options[self.index][1]

    @value.setter
    def value(self, value: Any) -> None:
        self.index = place(self.label, value, self.options)
        self.moved()

    def at(self, value: Any) -> "Control":
        """A copy of this control at `value`. Raises ValueError if it is not on offer."""
        if self.kind == "flag":
            validation.flag(self.label, value)
        return replace(self, index=place(self.label, value, self.options))

    def spec(self) -> dict[str, Any]:
        """The description that the browser needs to draw it."""
        spec = {"kind": self.kind, "label": self.label, "unit": self.unit}
        if isinstance(self.options, Numbers):
            return spec | {"least": self.options.least, "most": self.options.most}
        return spec | {"texts": [text for text, _ in self.options]}


class Numbers(Sequence[tuple[str, int]]):
    """The whole numbers least … most as a lazy sequence of options."""

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
    """A check box. Raises ValueError unless `value` is True or False."""
    validation.flag(name, value)
    return Control("flag", name, [("no", False), ("yes", True)], int(value))


def steps() -> Control:
    """A slider over the steps of a story; it has one step until the story is known."""
    return Control("steps", "step", Numbers(0, 0), 0)


def place(name: str, value: object, options: Options) -> int:
    """The index of `value` in `options`. Raises ValueError that lists the options."""
    if isinstance(options, Numbers):
        validation.whole(name, value, options.least, options.most)
        return int(value) - options.least  # type: ignore[call-overload, no-any-return]
    offered = [option for _, option in options]
    if value in offered:
        return offered.index(value)
    listed = ", ".join(map(str, offered))
    raise ValueError(f"{name} {value!r} is not one of {listed}: choose one of them")


# --- options that several panels share: models, links, sizes of GPU memory ------------------------

DENSE = [name for name, shape in MODELS.items() if not shape.experts]

# The data sheets' numbers, taken as 10^9 bytes, the smaller of the two readings. PyTorch reports
# about 6 % more on an A100 or H100 (theory.inputs.hardware): a margin for non-tensor memory.
GPU_MEMORY_BYTES = {
    "RTX 4090 24 GB": 24 * GB,  # NVIDIA Ada architecture whitepaper, appendix A
    "A100 40 GB": 40 * GB,  # NVIDIA A100 data sheet
    "A100, H100 80 GB": 80 * GB,  # NVIDIA A100 and H100 data sheets
    "H200 141 GB": 141 * GB,  # NVIDIA H200 data sheet
}


def ethernet(gbit: int, latency_s: float = 50e-6) -> Link:
    """An Ethernet link of `gbit` Gb/s, with an assumed latency, for comparison."""
    return Link(f"Ethernet {gbit} Gb/s", gbit * 1e9 / 8, latency_s)


def by_name(*links: Link) -> dict[str, Link]:
    """{name: link}, as the options of a control."""
    return {link.name: link for link in links}
