"""What became of the arithmetic that was paid for: hours across, speed upwards."""

from course_lib.figures.engines.lanes import Levels
from course_lib.figures.engines.page import page
from course_lib.figures.paper import style
from course_lib.figures.paper.drawing import Drawing
from course_lib.figures.paper.text import width_pt
from course_lib.theory.audits.whole_run import RunAudit


class _Bands(Levels):
    """Levels with their names inside, where there is room."""

    @property
    def fitting(self) -> dict[str, tuple[float, float]]:
        """Where the names of the levels that have room for them stand: across, and upwards."""
        bands, low = {}, 0.0
        for name, its in self.levels.items():
            rate, start = max((rate, at) for at, rate in its)
            high = self.high * rate / self.most
            ends = [at for at, size in its if not size] or [self.over[1]]
            if start == 0 and high > 14 and width_pt(name, 9) < self.x(ends[0]) - self.left:
                bands[name] = ((self.left + self.x(ends[0])) / 2, low + high / 2)
            low += high
        return bands

    def draw(self, drawing: Drawing, top: float) -> None:
        super().draw(drawing, top)
        bottom = top + self.height_pt - 4
        for name, (x, up) in self.fitting.items():
            ink = style.on(self.looks[name][0])
            drawing.write(x, bottom - up + 3.3, name, 9, "center", ink)


def paid_time(audit: RunAudit) -> Drawing:
    """The hours of a run times the peak as one large box, and in it the part that 6·N·D counts."""
    run, step = audit.run, audit.step.flop_per_s
    peak, counted = run.peak_flop_per_s, step * audit.useful
    product = f"{audit.hfu:.1%} · {audit.useful:.1%} · {audit.kept:.1%} = {run.mfu:.1%}"
    parts = {
        f"counted by 6ND: {product} of all that was paid": (counted, style.COMPUTING),
        f"computed twice, or scores: {1 - audit.useful:.1%} of the steps' work": (
            step - counted,
            style.TEMPORARY,
        ),
        f"not reached in a step: {1 - audit.hfu:.1%} of the peak": (peak - step, style.IDLE),
    }
    lost = f"everything but steps: {1 - audit.kept:.1%} of the hours"
    block = _Bands(
        {name: [(0, rate), (audit.kept, 0)] for name, (rate, _) in parts.items()}
        | {lost: [(audit.kept, peak)]},
        over=(0, 1),
        name="speed",
        high=190,
        told=lambda rate: f"{rate / 1e12:.3g} TFLOP/s",
        outlined=True,
        looks={name: (fill, None) for name, (_, fill) in parts.items()}
        | {lost: (style.WHITE, "/")},
    )
    rates = f"{counted / 1e12:.3g}, {step / 1e12:.3g} and {peak / 1e12:.3g} TFLOP/s"
    return page(
        f"{run.name}: {run.gpu_hours:,.0f} GPU-hours, and what became of them",
        block,
        key=[name for name in block.words if name not in block.fitting],
        notes=[f"upwards: {rates}; across: the hours"],
        sentence=f"{run.name}: {'; '.join(parts)}; {lost}",
    )
