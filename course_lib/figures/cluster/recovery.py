"""A job that lost a node: what it spent its time with until it was done."""

from collections.abc import Mapping

from course_lib.figures.paper import style
from course_lib.figures.paper.picture import WIDTH_PT
from course_lib.figures.paper.sheet import Sheet

# Each phase from one event to another, with its colour.
_PHASES = (
    ("waits in the queue", "submitted", "started", style.IDLE),
    ("starts torch", "started", "training", style.IDLE),
    ("trains", "training", "killed", style.COMPUTING),
    ("hangs: nobody misses the node yet", "killed", "requeued", style.WARNING),
    ("waits in the queue", "requeued", "restarted", style.IDLE),
    ("starts torch again", "restarted", "resumed", style.IDLE),
    ("trains, from the checkpoint on", "resumed", "done", style.COMPUTING),
)
_LEFT, _RIGHT, _TOP, _ROW, _BAR = 190, 56, 30, 22, 14
_EVENTS = tuple(dict.fromkeys(event for _, *ends, _ in _PHASES for event in ends))


def requeue_timeline(times: Mapping[str, float]) -> Sheet:
    """One row for each phase, on one scale of seconds.

    `times` has seconds since the submission for submitted, started, training, killed, requeued,
    restarted, resumed and done, as `cluster.requeue().times`. Raises ValueError where one is
    missing, or comes before the one that it follows.
    """
    if missing := [event for event in _EVENTS if event not in times]:
        raise ValueError(f"times lacks {', '.join(missing)}: give times of cluster.requeue()")
    if [times[event] for event in _EVENTS] != sorted(times[event] for event in _EVENTS):
        raise ValueError(f"times must rise from {' to '.join(_EVENTS)}, got {dict(times)}")
    scale = (WIDTH_PT - _LEFT - _RIGHT) / max(times["done"], 1e-9)
    sheet = Sheet(_TOP + _ROW * len(_PHASES) + 4, _sentence(times))
    sheet.title(f"{times['done']:.1f} s with the loss of a node")
    for place, (words, start, end, fill) in enumerate(_PHASES):
        y, duration_s = _TOP + place * _ROW, times[end] - times[start]
        x = _LEFT + times[start] * scale
        sheet.write(0, y + 11, words)
        sheet.boxes([(x, y, max(1.0, duration_s * scale), _BAR)], fill)
        sheet.write(x + max(1.0, duration_s * scale) + 5, y + 11, f"{duration_s:.1f} s")
    return sheet


def _sentence(times: Mapping[str, float]) -> str:
    phases = [f"{words} {times[end] - times[start]:.1f} s" for words, start, end, _ in _PHASES]
    return f"A job that loses a node, in {times['done']:.1f} s: " + ", ".join(phases) + "."
