"""The stepper of chapter 9: the two pairs of buffers of YaFSDP."""

from course_lib import figures
from course_lib.panels.controls import whole
from course_lib.panels.panel import View
from course_lib.panels.stepper import Stepper, Story
from course_lib.theory.memory.buffer_turns import BufferMoment, buffer_turns


def yafsdp(layers: int = 8) -> Stepper:
    """Layer after layer, forward and backward; what lies in which buffer.

    Raises ValueError for a starting value outside the slider.
    """
    return Stepper({"layers": whole("layers", layers, 3, 16)}, _story)


def _story(layers: int) -> Story:
    moments = buffer_turns(layers)
    return Story(len(moments), lambda step: _view(moments, step))


def _view(moments: tuple[BufferMoment, ...], step: int) -> View:
    return View(
        moments[step],
        (),
        lambda: figures.buffer_turns_step(moments, step),
        _caption(moments[step]),
    )


def _caption(moment: BufferMoment) -> str:
    """Who computes, what arrives, what leaves."""
    place = ("even", "odd")[moment.layer % 2]
    said = []
    if moment.arriving is not None:
        said.append(f"layer {moment.arriving} arrives")
    elif moment.phase == "backward" and moment.layer:
        said.append(f"layer {moment.layer - 1} is still here, without a gather")
    elif moment.phase == "forward":
        said.append("it is the last one, so nothing arrives")
    if moment.leaving is not None:
        said.append(f"layer {moment.leaving}'s gradients leave")
    goes = f"Layer {moment.layer} goes {moment.phase} from the {place} buffer"
    return f"{goes}; {', '.join(said)}."
