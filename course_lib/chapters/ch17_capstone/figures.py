"""Figures of chapter 17, in addition to those of the library."""

import math
from collections.abc import Mapping, Sequence

from course_lib.chapters.ch17_capstone.claimed import RunAudit
from course_lib.chapters.ch17_capstone.streams import SharedTimeline
from course_lib.figures import *  # noqa: F403
from course_lib.figures.engines.bars import grouped_bars
from course_lib.figures.engines.cells import Cell, Cells
from course_lib.figures.engines.lanes import Levels
from course_lib.figures.engines.lines import Axis, Frame
from course_lib.figures.engines.page import Block, page
from course_lib.figures.paper import style
from course_lib.figures.paper.drawing import WIDTH_PT, Drawing
from course_lib.theory.audits.claim import VERDICTS, Audit, Claim
from course_lib.theory.inputs.units import format_count, format_duration, format_number

# --- audited ------------------------------------------------------------------------------------
# The claims of an audit: the value said, the value on the claim's own terms, the value found.


_TOP, _CLAIM = 46.0, 47.0  # top of the first claim; height of a claim
_LEFT, _RIGHT = 262.0, WIDTH_PT - 16
_OUTER, _INNER = 11.0, 6.0  # sizes of the marks of "own terms" and "found"
_MOST_POWER = 2.9  # below 3, so that no tick is at the very end


def audited(audit: Audit, title: str) -> Drawing:
    """One line per claim on a common scale of factors, with the value said in the middle.

    The pale box is the range that counts as the same number. A factor of 0 is at the left end.
    """
    axis, bottom = _axis(audit.claims), _TOP + _CLAIM * len(audit.claims) + 8
    claims = "; ".join(f"{it.words}: {_numbers(it)}, {it.verdict}" for it in audit.claims)
    drawing = Drawing(bottom + 8, f"{title}. {claims}.")
    drawing.title(title)
    words = "line: said, in a box of what counts as equal; hollow: on its own terms; filled: found"
    drawing.write(0, 34, words, 9, colour=style.GREY)
    frame = Frame(drawing, axis, axis, _LEFT, _TOP, _RIGHT, bottom)
    for index, claim in enumerate(audit.claims):
        top = _TOP + _CLAIM * index
        drawing.write(0, top + 9, f"{index + 1}. {claim.words}", bold=True, size=9)
        colour = style.INK if claim.verdict == VERDICTS[True, True] else style.WARNING_TEXT
        drawing.write(WIDTH_PT, top + 9, claim.verdict, 9, "right", colour)
        drawing.write(0, top + 22, _numbers(claim), size=9)
        _line(frame, claim, top + 19)
        drawing.write(0, top + 35, claim.because, size=9, colour=style.GREY)
    for factor in axis.ticks:
        drawing.write(frame.x(factor), bottom, _times(factor), 9, "center", style.GREY)
    return drawing


def _line(frame: Frame, claim: Claim, y: float) -> None:
    """Draw the scale of one claim with its three marks at height `y`."""
    drawing = frame.drawing
    low, high, found = (
        frame.x(max(factor, 1e-9))  # 0 lies at the left end
        for factor in (1 - claim.within, 1 + claim.within, _factor(claim, claim.found))
    )
    drawing.boxes([(low, y - 7, high - low, 14)], style.PALE, edge=style.PALE)
    drawing.line([(_LEFT, y), (_RIGHT, y)], style.GREY, 0.5)
    for x in map(frame.x, frame.across.ticks):
        drawing.line([(x, y - 3), (x, y + 3)], style.GREY, 0.5)
    middle = frame.x(1)
    if found < low or found > high:
        drawing.line([(middle, y), (found, y)], style.WARNING, 2)
    drawing.line([(middle, y - 8), (middle, y + 8)], style.INK, 1.5)
    if claim.own_terms is not None:
        own = frame.x(max(_factor(claim, claim.own_terms), 1e-9))
        drawing.boxes([(own - _OUTER / 2, y - _OUTER / 2, _OUTER, _OUTER)], style.WHITE)
    drawing.boxes([(found - _INNER / 2, y - _INNER / 2, _INNER, _INNER)], style.THEORY)


def _factor(claim: Claim, value: float) -> float:
    """`value` over the value said; 1 if both are 0."""
    return value / claim.said if claim.said else float(value == claim.said)


def _axis(claims: Sequence[Claim]) -> Axis:
    """A log axis around factor 1 with ticks at powers of ten, or at 1/2, 1 and 2 for small gaps."""
    values = [(claim, claim.found) for claim in claims]
    values += [(claim, claim.own_terms) for claim in claims if claim.own_terms is not None]
    factors = [_factor(claim, value) for claim, value in values]
    widest = max((abs(math.log10(factor)) for factor in factors if factor > 0), default=0.0)
    power = min(max(0.5, 1.1 * widest), _MOST_POWER)
    tens = [10.0**tick for tick in range(-int(power), int(power) + 1)]
    return Axis(tens if power >= 1 else [0.5, 1.0, 2.0], _times, "", True, (10**-power, 10**power))


def _times(factor: float) -> str:
    if factor > 1:
        return f"× {factor:,.0f}"
    return "as said" if factor > 0.99 else f"÷ {1 / factor:,.0f}"


def _numbers(claim: Claim) -> str:
    own = "unknown" if claim.own_terms is None else _text(claim.own_terms)
    numbers = f"said {_text(claim.said)}, own {own}, found {_text(claim.found)} {claim.unit}"
    return numbers.rstrip()


def _text(value: float) -> str:
    return format_count(value) if value >= 1_000_000 else format_number(value)


# --- economics ----------------------------------------------------------------------------------
# The cost of a million tokens on each GPU, trained and generated.


def token_costs(
    costs: Mapping[str, Mapping[str, float]], title: str = "a million tokens"
) -> Drawing:
    """Bars of USD per million tokens, from {"H100": {"training": 0.6, "generating": 2.0}}."""
    kinds = list(dict.fromkeys(kind for cost in costs.values() for kind in cost))
    looks = dict(zip(kinds, style.SERIES, strict=False))
    return grouped_bars(costs, title, lambda usd: f"{format_number(usd)} USD a million", looks)


# --- paid time ----------------------------------------------------------------------------------
# How the paid computing time was used: hours across, speed upwards.


def paid_time(audit: RunAudit) -> Drawing:
    """The paid hours of a run times the peak as a box, split into what 6·N·D counts and losses."""
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
    block = Levels(
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
        key=list(block.words),
        notes=[f"upwards: {rates}; across: the hours"],
        sentence=f"{run.name}: {'; '.join(parts)}; {lost}",
    )


# --- sharing ------------------------------------------------------------------------------------
# Streams that share a processor: a row per stream, a box per task, whose height is its speed.


def shared_rates(charts: Mapping[str, SharedTimeline]) -> Drawing:
    """Timelines one below another, from {"alone": timeline, "sharing": timeline}.

    A box has the full height of its row at full speed and half at half speed, so its area is its
    work. The first word of a task's name is its kind.
    """
    blocks: list[Block] = []
    for name, run in charts.items():
        heads = [f"{name}: {format_duration(run.total_s)}", *[""] * len(run.tasks)]
        for head, stream in zip(heads, _streams(run), strict=False):
            blocks.append(_levels(run, stream, head))
    return page("", *blocks, notes=["height: speed"])


def _levels(run: SharedTimeline, stream: str, head: str) -> Levels:
    levels: dict[str, list[tuple[float, float]]] = {}
    for span in run.spans:
        if span.stream == stream:
            times = levels.setdefault(span.task.split(" ", 1)[0], [])
            times += [(span.start_s, span.rate), (span.end_s, 0.0)]
    return Levels(
        levels,
        over=(0, run.total_s),
        name=stream,
        head=head,
        high=34,
        most=1.0,
        outlined=True,
        told="{:.0%}".format,
    )


def _streams(run: SharedTimeline) -> list[str]:
    """The streams sorted by work, most first, as in profiles."""
    work: dict[str, float] = {}
    for task in run.tasks:
        work[task.stream] = work.get(task.stream, 0) + task.alone_s
    return sorted(work, key=work.__getitem__, reverse=True)


# --- families -----------------------------------------------------------------------------------
# What each family of parallelism stores, splits and sends.


# By name: what is split, what is sent, and whether the network must add it up.
_FAMILIES = {
    "data": ("the batch", "gradients", "added up"),
    "pipeline": ("the stack of layers", "activations", "passed on"),
    "tensor": ("every matrix", "partial sums", "added up"),
    "expert": ("the experts of a layer", "tokens", "passed on"),
}


def families(sent_bytes: Mapping[str, int] | None = None) -> Drawing:
    """The part of a model on each of three GPUs: data, pipeline, tensor and expert parallelism.

    `sent_bytes`: by family, the bytes that one GPU passed to the network; with it the figure also
    says whether the network must add them up.
    """
    blocks: list[dict[str, dict[str, Cell]]]
    blocks = [{f"layer {layer + 1}": {} for layer in range(3)} for _ in range(2)]
    said = []
    for number, (name, (cut, moves, how)) in enumerate(_FAMILIES.items()):
        sent = f"{moves}, {how}: {sent_bytes[name]:,} bytes" if sent_bytes else f"moves {moves}"
        said.append(f"{name} parallelism cuts {cut}; {sent}")
        for gpu in range(3):
            column = f"{name}: cuts {cut}\n{sent}\nGPU {gpu}"
            for layer, row in enumerate(blocks[number // 2].values()):
                row[column] = _held(name, gpu, layer)
    title = "One model of 3 layers on 3 GPUs: filled is what a GPU holds"
    spoken = (". ".join(said[:2]), ". ".join(said[2:]))
    return page(title, *(Cells(g, high=26.0, said=s) for g, s in zip(blocks, spoken, strict=True)))


def _held(family: str, gpu: int, layer: int) -> Cell:
    """The part of a layer on a GPU; for experts, attention (on every GPU) above one of them."""
    if family == "tensor":
        return Cell("", {gpu: "weights"}, 3)
    if family == "expert":
        return Cell("", dict.fromkeys((0, 1, 2, 3 + gpu), "weights"), 6, 3)
    return Cell("", {0: "weights"} if family == "data" or gpu == layer else {})
