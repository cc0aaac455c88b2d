"""The fastest meshes of a plan: where their time goes, and how much memory they need."""

from course_lib.figures import style
from course_lib.figures.drawing import Drawing
from course_lib.figures.picture import WIDTH_PT, Picture
from course_lib.theory.inputs.units import format_bytes
from course_lib.theory.planner import Plan, PlannedLayout

_TOP, _ROW, _BAR = 62, 44, 13
_TIME_WIDTH, _MEMORY_LEFT, _MEMORY_WIDTH = 300, 356, 150
_PARTS = (
    ("computing", style.SKY, None),
    ("messages that show", style.ORANGE, "/"),
    ("bubble", style.GREEN, "-"),
)
_MEMORY = (style.PINK, "\\")


def ranked_layouts(plan: Plan, title: str = "", count: int = 5) -> Picture:
    """The `count` fastest meshes of a plan, and below them why others were rejected."""
    options = plan.meshes(count)
    notes = _notes(plan)
    height = _TOP + _ROW * max(1, len(options)) + 12 + 16 * len(notes)
    sheet = Drawing(height, sentence(plan, options, title, notes))
    sheet.write(0, 13, title, size=style.TITLE_PT, bold=True)
    _legend(sheet, plan)
    steps = [plan.step(option) for option in options]
    slowest = max((step.total_s for step in steps), default=1.0)
    for row, (option, step) in enumerate(zip(options, steps, strict=True)):
        y = _TOP + _ROW * row
        sheet.write(0, y + 4, _words(option))
        x = 0.0
        sizes = (step.working_s, step.communication_s, step.bubble_s)
        for (_, fill, hatch), seconds in zip(_PARTS, sizes, strict=True):
            width = _TIME_WIDTH * seconds / slowest
            sheet.boxes([(x, y + 10, width, _BAR)], fill, hatch)
            x += width
        sheet.write(x + 4, y + 21, f"{step.total_s:.3g} s")
        _memory(sheet, plan, option, y)
    if not options:
        _smallest(sheet, plan)
    for row, note in enumerate(notes):
        y = _TOP + _ROW * max(1, len(options)) + 10 + 16 * row
        sheet.write(0, y, note, colour=style.GREY)
    return sheet


def sentence(
    plan: Plan, options: tuple[PlannedLayout, ...], title: str, notes: tuple[str, ...]
) -> str:
    """How many fit, the fastest one with its parts, and the rejections, in words."""
    rejections = "; ".join(notes)
    if not options:
        return f"{title}: no layout fits; {rejections}."
    best, step = options[0], plan.step(options[0])
    return (
        f"{title}: the fastest is {_words(best)}, {step.total_s:.3g} s a step "
        f"({step.working_s / step.total_s:.0%} computing, "
        f"{step.communication_s / step.total_s:.0%} messages, "
        f"{step.bubble_s / step.total_s:.0%} bubble) and "
        f"{format_bytes(best.memory_bytes, digits=1)} of "
        f"{format_bytes(plan.capacity_bytes, digits=1)}; {rejections}."
    )


def _words(option: PlannedLayout) -> str:
    one = option.layout
    degrees = [f"tp {one.tp}", f"pp {one.pp}", f"dp {one.dp}"]
    degrees += [f"cp {one.cp}"] * (one.cp > 1) + [f"ep {one.ep}"] * (one.ep > 1)
    virtual = f", {one.virtual_stages} chunks" if one.virtual_stages > 1 else ""
    recompute = "" if option.recipe.recompute == "none" else f", {option.recipe.recompute} rec."
    return (
        f"{' × '.join(degrees)}, ZeRO-{one.zero_stage}, "
        f"{one.accumulation} × micro {one.micro_batch}{virtual}{recompute}"
    )


def _memory(sheet: Picture, plan: Plan, option: PlannedLayout, y: float) -> None:
    share = option.memory_bytes / plan.capacity_bytes
    sheet.boxes([(_MEMORY_LEFT, y + 10, _MEMORY_WIDTH, _BAR)], style.WHITE)
    sheet.boxes([(_MEMORY_LEFT, y + 10, _MEMORY_WIDTH * share, _BAR)], *_MEMORY)
    text = f"{format_bytes(option.memory_bytes, digits=1)}"
    sheet.write(_MEMORY_LEFT + _MEMORY_WIDTH, y + 4, text, align="right")


def _smallest(sheet: Picture, plan: Plan) -> None:
    """What comes closest, if nothing fits."""
    option, _ = next(plan.rejected())
    size = format_bytes(option.memory_bytes, digits=1)
    sheet.write(0, _TOP + 4, f"No layout fits. The smallest needs {size}:", bold=True)
    sheet.write(0, _TOP + 21, _words(option))


def _legend(sheet: Picture, plan: Plan) -> None:
    x = 0.0
    for (name, fill, hatch), width in zip(_PARTS, (74, 118, 60), strict=True):
        sheet.boxes([(x, 24, 12, 10)], fill, hatch)
        sheet.write(x + 16, 33, name, colour=style.GREY)
        x += width + 12
    sheet.boxes([(_MEMORY_LEFT, 24, 12, 10)], *_MEMORY)
    text = f"of {format_bytes(plan.capacity_bytes, digits=0)} memory"
    sheet.write(_MEMORY_LEFT + 16, 33, text, colour=style.GREY)
    sheet.line([(0, 44), (WIDTH_PT - 14, 44)], style.PALE)


def _notes(plan: Plan) -> tuple[str, ...]:
    """What fits, what would help the others, and which rules meshes break."""
    found = [f"{plan.fitting:,} of {plan.layouts:,} layouts fit"]
    helps = [f"{name} {count:,}" for name, count in plan.remedies.items() if count]
    if helps:
        found += [f"what helps the others: {', '.join(helps[:2])}{',' * (len(helps) > 2)}"]
        found += [", ".join(helps[2:])] * (len(helps) > 2)
    rules = [f"{name} {count:,}" for name, count in plan.excluded.items()]
    if rules:
        found += [f"meshes that break a rule: {', '.join(rules[:2])}"]
    return tuple(found)
