"""The fastest layouts of a plan: where their time goes, and how much memory they need."""

from collections.abc import Sequence

from course_lib.figures.paper import style
from course_lib.figures.paper.drawing import Drawing
from course_lib.figures.paper.key import key
from course_lib.figures.paper.picture import WIDTH_PT
from course_lib.theory.inputs.units import format_bytes, format_number
from course_lib.theory.planner import NEAR_THE_TOP, Judged, Plan, PlannedLayout, fastest, sturdy
from course_lib.theory.step.step_time import StepTime

_TOP, _ROW, _BAR, _AXES = 62, 41, 13, 34
_SECOND_LEGEND = 18
_TIME_WIDTH, _MEMORY_LEFT, _MEMORY_WIDTH = 300, 356, 150
_TIME_WIDTH_OF_TWO = 180  # leaves room for two times and two MFUs
_PARTS = (
    ("computing", style.COMPUTING),
    ("messages that show", style.MESSAGES),
    ("bubble", style.IDLE),
)
_STURDY = "◆"


def ranked_layouts(
    plan: Plan, title: str = "", count: int = 5, *, careful: Plan | None = None
) -> Drawing:
    """The `count` fastest layouts, one of each tp × pp × ep, and below them why others fail.

    `careful`, the same plan under cautious assumptions: a line leads from each time to that one,
    and the last layout is the sturdiest, unless that is among the fastest.
    """
    plans = [plan] if careful is None else [plan, careful]
    options = _shown(plans, count)
    notes = _notes(plan)
    steps = [plan.step(one.option) for one in options]
    words = sentence(plan, list(zip(options, steps, strict=True)), title, notes)
    top = _TOP + _SECOND_LEGEND * (careful is not None)
    below = top + _ROW * max(1, len(options))
    drawing = Drawing(below + _AXES + 16 * len(notes), words)
    drawing.title(title)
    _legend(drawing, plan, top - 18)
    width = _TIME_WIDTH if careful is None else _TIME_WIDTH_OF_TWO
    slowest = max((max(one.steps_s) for one in options), default=1.0)
    least = min((one.regret for one in options), default=0.0)
    for row, (one, step) in enumerate(zip(options, steps, strict=True)):
        y = top + _ROW * row
        marked = careful is not None and (one.sturdy or one.regret == least)
        drawing.write(0, y + 4, f"{_STURDY} " * marked + layout_words(plan, one.option))
        _time(drawing, plan, (one, step), (width / slowest, y + 10))
        _memory(drawing, plan, one.option, y)
    if options:
        _axis(drawing, (0, width, below), format_number(slowest), "seconds of a step")
        capacity = f"{plan.capacity_bytes / 1e9:.0f}"
        _axis(drawing, (_MEMORY_LEFT, _MEMORY_WIDTH, below), capacity, "GB")
    else:
        _smallest(drawing, plan, top)
    for row, note in enumerate(notes):
        drawing.write(0, below + _AXES - 4 + 16 * row, note, colour=style.GREY)
    return drawing


def _shown(plans: Sequence[Plan], count: int) -> list[Judged]:
    """The fastest ones; the sturdiest comes last if it is not among them."""
    options, best = list(fastest(plans, count)), sturdy(plans, 1)
    return options if best and best[0] in options else [*options[: count - 1], *best]


def sentence(
    plan: Plan, options: Sequence[tuple[Judged, StepTime]], title: str, notes: tuple[str, ...]
) -> str:
    """How many fit, the fastest one with its parts, the sturdiest, and the rejections, in words."""
    rejections = "; ".join(notes).replace(",; ", ", ")
    if not options:
        return f"{title}: no layout fits; {rejections}."
    best, step = options[0]
    sturdiest = min((one for one, _ in options), key=lambda one: one.regret)
    judged = ""
    if len(best.steps_s) > 1:
        judged = (
            f"; under cautious assumptions it takes {format_number(best.steps_s[1])} s; the "
            f"sturdiest is {layout_words(plan, sturdiest.option)}, {_seconds(sturdiest)}, at worst "
            f"{sturdiest.regret:.0%} behind the best"
        )
    return (
        f"{title}: the fastest is {layout_words(plan, best.option)}, "
        f"{format_number(step.total_s)} s a step ({step.working_s / step.total_s:.0%} computing, "
        f"{step.communication_s / step.total_s:.0%} messages, "
        f"{step.bubble_s / step.total_s:.0%} bubble) and "
        f"{format_bytes(best.option.memory_bytes, digits=1)} of "
        f"{format_bytes(plan.capacity_bytes, digits=1)}{judged}; {rejections}."
    )


def layout_words(plan: Plan, option: PlannedLayout) -> str:
    """A layout as a reader says it: "tp 2 × pp 1 × dp 64, ZeRO-3, 8 × micro 1"."""
    one, routed = option.layout, plan.question.shape.experts > 0
    degrees = [f"tp {one.tp}", f"pp {one.pp}", f"dp {one.dp}"]
    degrees += [f"cp {one.cp}"] * (one.cp > 1) + [f"ep {one.ep}"] * routed
    virtual = f", {one.virtual_stages} chunks" if one.virtual_stages > 1 else ""
    recompute = "" if option.recipe.recompute == "none" else f", {option.recipe.recompute} rec."
    return (
        f"{' × '.join(degrees)}, ZeRO-{one.zero_stage}, "
        f"{one.accumulation} × micro {one.micro_batch}{virtual}{recompute}"
    )


def _seconds(one: Judged) -> str:
    """The times of a layout: "28.1 s", "28.1–41.0 s"."""
    return _from_to([_three_digits(seconds) for seconds in one.steps_s]) + " s"


def _three_digits(seconds: float) -> str:
    """ "28.0", "1,258": zeros stay, since two times are compared."""
    return f"{seconds:#.3g}".rstrip(".") if seconds < 999.5 else format_number(seconds)


def _from_to(numbers: Sequence[str]) -> str:
    """Equal ones once."""
    return "–".join(dict.fromkeys(numbers))


def _time(
    drawing: Drawing, plan: Plan, found: tuple[Judged, StepTime], place: tuple[float, float]
) -> None:
    """A bar of the parts of the first time, a line to the second, and both in numbers."""
    (one, step), (scale, y), x = found, place, 0.0
    sizes = (step.working_s, step.communication_s, step.bubble_s)
    for (_, fill), seconds in zip(_PARTS, sizes, strict=True):
        drawing.boxes([(x, y, scale * seconds, _BAR)], fill)
        x += scale * seconds
    text = _seconds(one)
    if len(one.steps_s) > 1:
        end = scale * one.steps_s[1]
        _whisker(drawing, x, end, y + _BAR / 2)
        rates = [f"{100 * plan.mfu(seconds):.0f}" for seconds in one.steps_s]
        x, text = max(x, end), f"{text}, MFU {_from_to(rates)} %"
    drawing.write(x + 5, y + 11, text, size=9)


def _whisker(drawing: Drawing, x: float, end: float, y: float) -> None:
    """A line with a stop at its end."""
    drawing.line([(x, y), (end, y)], style.INK, 1.5)
    drawing.line([(end, y - 5), (end, y + 5)], style.INK, 1.5)


def _axis(drawing: Drawing, place: tuple[float, float, float], most: str, unit: str) -> None:
    """A scale from 0 to `most` below the bars."""
    left, width, y = place
    drawing.line([(left, y), (left + width, y)], style.GREY)
    for x, text, align in ((left, "0", "left"), (left + width, most, "right")):
        drawing.line([(x, y), (x, y + 3)], style.GREY)
        drawing.write(x, y + 13, text, align=align, colour=style.GREY)
    drawing.write(left + width / 2, y + 13, unit, align="center", colour=style.GREY)


def _memory(drawing: Drawing, plan: Plan, option: PlannedLayout, y: float) -> None:
    share = option.memory_bytes / plan.capacity_bytes
    drawing.boxes([(_MEMORY_LEFT, y + 10, _MEMORY_WIDTH, _BAR)], style.WHITE)
    drawing.boxes([(_MEMORY_LEFT, y + 10, _MEMORY_WIDTH * share, _BAR)], style.STATES)
    text = f"{format_bytes(option.memory_bytes, digits=1)}"
    drawing.write(_MEMORY_LEFT + _MEMORY_WIDTH, y + 4, text, align="right")


def _smallest(drawing: Drawing, plan: Plan, top: float) -> None:
    """What comes closest, if nothing fits."""
    option, _ = next(plan.rejected())
    size = format_bytes(option.memory_bytes, digits=1)
    drawing.write(0, top + 4, f"No layout fits. The smallest needs {size}:", bold=True)
    drawing.write(0, top + 21, layout_words(plan, option))


def _legend(drawing: Drawing, plan: Plan, bottom: float) -> None:
    """What colours mean; in a second line, if there is room for one, lines and marks."""
    memory = f"of {format_bytes(plan.capacity_bytes, digits=0)} memory"
    key(drawing, {**dict(_PARTS), memory: style.STATES}, 0, 22)
    if bottom > _TOP - _SECOND_LEGEND:
        _whisker(drawing, 0, 20, 47)
        drawing.write(26, 51, "to the time under cautious assumptions", colour=style.GREY)
        text = f"{_STURDY} sturdiest, or within {NEAR_THE_TOP:.0%} under both"
        drawing.write(WIDTH_PT - 14, 51, text, align="right", colour=style.GREY)
    drawing.line([(0, bottom), (WIDTH_PT - 14, bottom)], style.PALE)


def _notes(plan: Plan) -> tuple[str, ...]:
    """What fits, what would help the others, and which rules meshes break."""
    found = [f"{plan.fitting:,} of {plan.layouts:,} layouts fit"]
    helps = [
        f"{'nothing' if name == 'neither' else name} for {count:,}"
        for name, count in plan.remedies.items()
        if count
    ]
    if helps:
        found += [f"what helps the others: {', '.join(helps[:2])}{',' * (len(helps) > 2)}"]
        found += [", ".join(helps[2:])] * (len(helps) > 2)
    rules = [f"{name} {count:,}" for name, count in plan.excluded.items()]
    if rules:
        found += [f"meshes that break a rule: {', '.join(rules[:2])}"]
    return tuple(found)
