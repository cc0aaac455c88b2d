"""What became of the arithmetic that was paid for: hours across, speed upwards."""

from course_lib.figures.paper import style
from course_lib.figures.paper.drawing import Drawing
from course_lib.figures.paper.picture import WIDTH_PT
from course_lib.theory.audits.whole_run import RunAudit

_LEFT, _TOP, _HIGH = 56.0, 44.0, 190.0
_WIDE = WIDTH_PT - _LEFT - 8
_LINE, _LETTER_PT = 16.0, 5.6
_TERA = 1e12


def paid_time(audit: RunAudit) -> Drawing:
    """The hours of a run times the peak as one large box, and in it the part that 6·N·D counts."""
    run, step = audit.run, audit.step.flop_per_s
    rates = {"peak": run.peak_flop_per_s, "step": step, "6ND": step * audit.useful}
    drawing = Drawing(_TOP + _HIGH + 36, _sentence(audit))
    title = f"{run.name}: {run.gpu_hours:,.0f} GPU-hours at {run.peak_flop_per_s / _TERA:.3g} "
    drawing.write(0, 13, f"{title}TFLOP/s, and what became of them", style.TITLE_PT, bold=True)
    drawing.write(0, 34, "TFLOP/s", 9, colour=style.GREY)
    wide, bottom = _WIDE * audit.kept, _TOP + _HIGH
    high = {name: _HIGH * rate / run.peak_flop_per_s for name, rate in rates.items()}
    drawing.boxes([(_LEFT, _TOP, _WIDE, _HIGH)], style.IDLE)
    drawing.boxes([(_LEFT + wide, _TOP, _WIDE - wide, _HIGH)], style.WHITE, "/", style.WARNING)
    drawing.boxes([(_LEFT, bottom - high["step"], wide, high["step"])], style.TEMPORARY)
    drawing.boxes([(_LEFT, bottom - high["6ND"], wide, high["6ND"])], style.COMPUTING)
    above = _TOP - _LINE
    for name, rate in rates.items():
        y = bottom - high[name]
        drawing.line([(_LEFT - 5, y), (_LEFT, y)], style.GREY)
        if y - above >= _LINE / 2 + 4:  # numbers must not lie on one another
            drawing.write(_LEFT - 8, y + 4, f"{rate / _TERA:.3g}", 9, "right")
            above = y
    missed = f"not reached in a step: {1 - audit.hfu:.1%} of the peak"
    _inside(drawing, (wide, high["step"], _HIGH), style.IDLE, missed)
    twice = f"computed twice, or scores: {1 - audit.useful:.1%} of the steps' work"
    _inside(drawing, (wide, high["6ND"], high["step"]), style.TEMPORARY, twice)
    product = f"{audit.hfu:.1%} · {audit.useful:.1%} · {audit.kept:.1%} = {run.mfu:.1%}"
    counted = f"counted by 6ND: {product} of all that was paid"
    _inside(drawing, (wide, 0, high["6ND"]), style.COMPUTING, counted)
    _hours(drawing, audit, wide, bottom)
    return drawing


def _inside(drawing: Drawing, band: tuple[float, float, float], fill: str, text: str) -> None:
    """Words in the middle of a band (width, from, to: heights above the bottom), if there is room.

    Where there is none the sentence has them.
    """
    wide, low, high = band
    if high - low > _LINE and len(text) * _LETTER_PT < wide:
        y = _TOP + _HIGH - (low + high) / 2 + 4
        drawing.write(_LEFT + wide / 2, y, text, 9, "center", style.on(fill))


def _hours(drawing: Drawing, audit: RunAudit, wide: float, bottom: float) -> None:
    """Below: how many hours were steps, and how many were not."""
    y = bottom + 9
    for start, end in ((_LEFT, _LEFT + wide), (_LEFT + wide, _LEFT + _WIDE)):
        drawing.line([(start + 1, y - 4), (start + 1, y), (end - 1, y), (end - 1, y - 4)])
    drawing.write(_LEFT, y + 14, f"{audit.kept:.1%} of the hours: steps", 9)
    lost = f"{1 - audit.kept:.1%}: everything else"
    drawing.write(_LEFT + _WIDE, y + 14, lost, 9, "right")


def _sentence(audit: RunAudit) -> str:
    return (
        f"{audit.run.name}: {audit.kept:.1%} of the hours were steps; in these the hardware ran at "
        f"{audit.hfu:.1%} of its peak, and {audit.useful:.1%} of that is counted by 6ND: "
        f"{audit.run.mfu:.1%} of what was paid."
    )
