"""The panel of chapter 17: small kernels that give way, and what waits for them in the end."""

from course_lib.figures.compute import sharing as figure
from course_lib.panels.controls import listed, whole
from course_lib.panels.panel import Rows, View, panel
from course_lib.theory.inputs.units import format_number, format_seconds
from course_lib.theory.step.give_way import sharded_backward
from course_lib.theory.step.streams import SharedTimeline, Task, shared_timeline

# The case of section 17.4: eight layers of LLaMA-2 70B, 4096 tokens, on an A100.
_LAYERS = 8
_MULTIPROCESSORS = 108  # of an A100
_HELD = 100.0  # a collective's blocks stay where they are until it ends
_SMALL_MS = {f"{ms:g}": ms for ms in (1, 2, 3, 3.4, 4, 5, 7, 10, 20)}
_WEIGHTS = {f"1 / {part}": 1 / part for part in (100, 50, 20, 10, 5, 2, 1)}


@panel
def give_way(
    backward_ms: int = whole("backward", 96, 10, 200, "ms"),
    message_ms: int = whole("a message", 34, 1, 100, "ms"),
    prepare_ms: float = listed("small kernels", 3.4, _SMALL_MS, "ms"),
    weight: float = listed("their weight", 1 / 20, _WEIGHTS),
    multiprocessors: int = whole("message SMs", 20, 0, 64),
) -> View:
    """Sliders for `sharded_backward`, whose shared timeline is the panel's result.

    `weight`: that of a small kernel against 1 of a large one. `multiprocessors`: those that a
    collective takes, of 108. Raises ValueError for starting values that are not offered.
    """
    backward = Task("backward", "computing", backward_ms / 1000, {"processor": 1.0})
    part = {"processor": multiprocessors / _MULTIPROCESSORS, "link": 1.0}
    message = Task("message", "messages", message_ms / 1000, part, weight=_HELD)
    small = Task("prepare", "messages", prepare_ms / 1000, {"processor": 1.0}, weight=weight)
    run, without = (
        shared_timeline(sharded_backward(_LAYERS, backward, message, message, prepare=prepare))
        for prepare in (small, None)
    )
    charts = {"small kernels before each scatter": run, "no small kernels": without}
    return View(run, _rows(run, without), lambda: figure.shared_rates(charts))


def _rows(run: SharedTimeline, without: SharedTimeline) -> Rows:
    middle = _LAYERS // 2 + 1
    slower = {task: run.slowdown(f"{task} {middle}") for task in ("prepare", "backward")}
    return (
        ("all of it", f"{format_seconds(run.total_s)} for {_LAYERS} layers"),
        ("without small kernels", format_seconds(without.total_s)),
        ("if nothing were shared", format_seconds(run.ideal_s)),
        ("a small kernel takes", f"{format_number(slower['prepare'])} times as long as alone"),
        ("a backward takes", f"{format_number(slower['backward'])} times as long as alone"),
        ("computing waits", format_seconds(run.waits_s("computing"))),
    )
