"""The memory of one GPU up to one moment of a step."""

from course_lib.figures.memory.memory_over_time import PANEL_PT, MemoryCurve, Panel
from course_lib.figures.paper.drawing import Drawing
from course_lib.theory.inputs.units import format_bytes


def memory_step(run: MemoryCurve, step: int) -> Drawing:
    """The areas up to moment `step`, and a line for all that comes.

    Raises IndexError for a moment that is not there.
    """
    whole = Panel.of("in the whole step", run)
    now = f"now {format_bytes(whole.totals[step])}: {whole.where(step)}"
    panel = Panel.of(now, run)
    held = ", ".join(
        f"{name} {format_bytes(sizes[step])}" for name, sizes in run.sizes.items() if sizes[step]
    )
    sentence = f"Moment {step + 1} of {len(run.phases)}, {now}: {held}; {whole.sentence()}."
    drawing = Drawing(PANEL_PT, sentence)
    panel.draw(drawing, 0, panel.peak_bytes, until=step)
    return drawing
