"""The fastest layouts of a plan, with their time breakdown and memory."""

from collections.abc import Mapping, Sequence

from course_lib.figures.engines.cells import Cell, Cells
from course_lib.figures.engines.page import page
from course_lib.figures.paper import style
from course_lib.figures.paper.drawing import Drawing
from course_lib.theory.inputs.units import format_bytes, format_number
from course_lib.theory.planner import NEAR_THE_TOP, Judged, Plan, PlannedLayout, fastest, sturdy
from course_lib.theory.step.step_time import StepTime

_SLOTS = 320  # resolution of a bar
_STURDY = "◆"
_CAUTIOUS = "to the time under cautious assumptions"
_LOOKS: Mapping[str, style.Look] = {
    "computing": (style.COMPUTING, None),
    "messages that show": (style.MESSAGES, None),
    "bubble": (style.IDLE, None),
    _CAUTIOUS: (style.PALE, "/"),
    "memory": (style.STATES, None),
}


def ranked_layouts(
    plan: Plan, title: str = "", count: int = 5, *, careful: Plan | None = None
) -> Drawing:
    """Draw the `count` fastest layouts, one per tp × pp × ep, and why the others fail.

    `careful` is the same plan under cautious assumptions: bars extend to its times, and the last
    layout is the sturdiest, unless that is among the fastest.
    """
    plans = [plan] if careful is None else [plan, careful]
    options, best = list(fastest(plans, count)), sturdy(plans, 1)
    if best and best[0] not in options:
        options = [*options[: count - 1], *best]
    steps = [plan.step(one.option) for one in options]
    notes = _notes(plan)
    said = sentence(plan, list(zip(options, steps, strict=True)), "; ".join(notes))
    grid: dict[str, dict[str, Cell]] = {}
    slowest = max((max(one.steps_s) for one in options), default=1.0)
    least = min((one.regret for one in options), default=0.0)
    label_columns = 1 if careful is None else 3  # spanned by the label of the time
    scale = f"0 to {format_number(slowest)} seconds of a step"
    scale += f", and to {format_bytes(plan.capacity_bytes, digits=0)} of memory"
    for place, (one, step) in enumerate(zip(options, steps, strict=True), 1):
        marked = careful is not None and (one.sturdy or one.regret == least)
        grid[f"{_STURDY} " * marked + layout_words(plan, one.option)] = {}
        size = format_bytes(one.option.memory_bytes, digits=1)
        row = dict.fromkeys(map(str, range(9)), Cell(slots=0))  # those under wider ones stay empty
        row["0"] = _time(one, step, slowest)._replace(wide=6 - label_columns)
        row[str(6 - label_columns)] = Cell(_label(plan, one), slots=0, wide=label_columns)
        row["6"], row["8"] = _memory(plan, one), Cell(size, slots=0)
        grid[str(place)] = row
    if not options:
        smallest, _ = next(plan.rejected())
        size = format_bytes(smallest.memory_bytes, digits=1)
        grid = {f"No layout fits. The smallest needs {size}:": {}, layout_words(plan, smallest): {}}
    if careful is not None:
        notes = (f"{_STURDY} sturdiest, or within {NEAR_THE_TOP:.0%} under both", *notes)
    shown = [*_LOOKS][: 3 if careful is None else 4]
    note = scale if options else ""
    bars = Cells(grid, looks=_LOOKS, high=16.0, heads=False, note=note, said=said)
    return page(title, bars, notes=notes, key=shown)


def sentence(plan: Plan, options: Sequence[tuple[Judged, StepTime]], notes: str) -> str:
    """A description: the fastest layout with its time breakdown, the sturdiest, rejections."""
    rejections = notes.replace(",; ", ", ")
    if not options:
        return f"no layout fits; {rejections}"
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
        f"the fastest is {layout_words(plan, best.option)}, "
        f"{format_number(step.total_s)} s a step ({step.working_s / step.total_s:.0%} computing, "
        f"{step.communication_s / step.total_s:.0%} messages, "
        f"{step.bubble_s / step.total_s:.0%} bubble) and "
        f"{format_bytes(best.option.memory_bytes, digits=1)} of "
        f"{format_bytes(plan.capacity_bytes, digits=1)}{judged}; {rejections}"
    )


def layout_words(plan: Plan, option: PlannedLayout) -> str:
    """A layout as text: "tp 2 × pp 1 × dp 64, ZeRO-3, 8 × micro 1"."""
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
    """The step times of a layout, without duplicates: "28.0 s", "28.1–1,258 s"."""
    texts = [  # zeros stay, since two times are compared
        f"{seconds:#.3g}".rstrip(".") if seconds < 999.5 else format_number(seconds)
        for seconds in one.steps_s
    ]
    return "–".join(dict.fromkeys(texts)) + " s"


def _label(plan: Plan, one: Judged) -> str:
    """The step times and, with two sets of assumptions, both MFUs."""
    if len(one.steps_s) == 1:
        return _seconds(one)
    rates = [f"{100 * plan.mfu(seconds):.0f}" for seconds in one.steps_s]
    return f"{_seconds(one)}, MFU {'–'.join(dict.fromkeys(rates))} %"


def _time(one: Judged, step: StepTime, slowest: float) -> Cell:
    """A bar: the breakdown of the first time, extended to the second."""
    sizes = [step.working_s, step.communication_s, step.bubble_s, one.steps_s[-1] - step.total_s]
    ends = [round(_SLOTS * sum(sizes[: place + 1]) / slowest) for place in range(len(sizes))]
    words: list[str] = []
    for word, end in zip(_LOOKS, ends, strict=False):
        words += [word] * (end - len(words))
    return Cell(filled=dict(enumerate(words)), slots=_SLOTS)


def _memory(plan: Plan, one: Judged) -> Cell:
    size = one.option.memory_bytes
    filled = dict.fromkeys(range(round(_SLOTS * size / plan.capacity_bytes)), "memory")
    return Cell("", filled, _SLOTS, wide=2)


def _notes(plan: Plan) -> tuple[str, ...]:
    """Notes: how many fit, what would help the others, and which rules meshes break."""
    notes = [f"{plan.fitting:,} of {plan.layouts:,} layouts fit"]
    helps = [
        f"{'nothing' if name == 'neither' else name} for {count:,}"
        for name, count in plan.remedies.items()
        if count
    ]
    if helps:
        notes += [f"what helps the others: {', '.join(helps[:2])}{',' * (len(helps) > 2)}"]
        notes += [", ".join(helps[2:])] * (len(helps) > 2)
    rules = [f"{name} {count:,}" for name, count in plan.excluded.items()]
    if rules:
        notes += [f"meshes that break a rule: {', '.join(rules[:2])}"]
    return tuple(notes)
