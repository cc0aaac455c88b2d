"""Named controls: ipywidgets' sliders have no accessible name, so each gets a box that has one."""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import ipywidgets as widgets
from traitlets import link

from course_lib import validation

_NAME_WIDTH = "105px"
_BOX_WIDTH = "190px"
_SLIDER = {"width": "138px", "margin": "2px 0 2px 10px"}  # the handle must not touch the box
_ROW_WIDTH = "345px"  # two rows side by side in a JupyterLab window of 1200 pixels


@dataclass(frozen=True)
class Control:
    """What holds the value, and the row that shows it."""

    widget: widgets.ValueWidget
    row: widgets.Widget


def whole(name: str, value: int, least: int, most: int) -> Control:
    """A slider over the whole numbers least … most with a number box.

    Raises ValueError for a starting value out of range, which the slider would change silently.
    """
    validation.whole(name, value, least, most)
    slider = widgets.IntSlider(value, least, most, readout=False, layout=widgets.Layout(**_SLIDER))
    box = widgets.BoundedIntText(value, least, most, **_named(name))
    return _linked(slider, box)


def powers_of_two(name: str, value: int, least: int, most: int) -> Control:
    """A slider over the powers of two least … most with a list to choose from.

    Raises ValueError for a starting value that is not one of them.
    """
    options = [least << step for step in range((most // least).bit_length())]
    return listed(name, value, {str(option): option for option in options})


def listed(name: str, value: Hashable, options: Mapping[str, Any]) -> Control:
    """A slider over the values of `options`, text: value, with a list to choose from.

    Raises ValueError for a starting value that is not in it.
    """
    _must_be_one_of(name, value, options.values())
    pairs = list(options.items())
    slider = widgets.SelectionSlider(
        options=pairs, value=value, readout=False, layout=widgets.Layout(**_SLIDER)
    )
    return _linked(slider, widgets.Dropdown(options=pairs, value=value, **_named(name)))


def choice(name: str, value: Hashable, options: Sequence[Any] | Mapping[str, Any]) -> Control:
    """A list to choose from; a mapping gives the text of each value.

    Raises ValueError for a starting value that is not in it.
    """
    _must_be_one_of(name, value, options.values() if isinstance(options, Mapping) else options)
    pairs = options.items() if isinstance(options, Mapping) else options
    box = widgets.Dropdown(options=list(pairs), value=value, **_named(name))
    box.layout.width = _ROW_WIDTH
    return Control(box, box)


def flag(name: str, value: bool) -> Control:
    """A checkbox. Raises ValueError unless `value` is True or False."""
    validation.flag(name, value)
    box = widgets.Checkbox(value, description=name, indent=False, layout=_width(_BOX_WIDTH))
    return Control(box, box)


def _linked(slider: widgets.ValueWidget, box: widgets.ValueWidget) -> Control:
    link((slider, "value"), (box, "value"))
    return Control(slider, widgets.HBox([box, slider], layout=_width(_ROW_WIDTH)))


def _named(name: str) -> dict[str, Any]:
    return {
        "description": name,
        "style": {"description_width": _NAME_WIDTH},
        "layout": _width(_BOX_WIDTH),
    }


def _width(width: str) -> widgets.Layout:
    return widgets.Layout(width=width)


def _must_be_one_of(name: str, value: object, options: Any) -> None:
    if value not in list(options):
        listed = ", ".join(map(str, options))
        raise ValueError(f"{name} {value!r} is not one of {listed}: choose one of them")
