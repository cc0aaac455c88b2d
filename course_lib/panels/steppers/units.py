"""Stories of one GPU's memory: a step, a layer, the units of FSDP, the buffers of YaFSDP."""

from collections.abc import Mapping
from dataclasses import replace
from itertools import groupby

from course_lib.figures.engines.cells import Cell, Cells
from course_lib.figures.engines.lanes import Lanes, Levels
from course_lib.figures.engines.page import page
from course_lib.figures.paper import style
from course_lib.figures.paper.drawing import Drawing
from course_lib.panels.controls import choice, flag, powers_of_two, whole
from course_lib.panels.panel import Rows
from course_lib.panels.stepper import Stepper
from course_lib.panels.story import Story
from course_lib.theory.inputs.hardware import NDR, accelerator
from course_lib.theory.inputs.job import Job
from course_lib.theory.inputs.layout import Layout
from course_lib.theory.inputs.models import MODELS
from course_lib.theory.inputs.recipe import Recipe
from course_lib.theory.inputs.shape import TransformerShape
from course_lib.theory.inputs.units import format_bytes, format_duration
from course_lib.theory.memory.buffer_turns import buffer_turns
from course_lib.theory.memory.layer_walk import OPERATIONS, SavedTensor, layer_walk
from course_lib.theory.memory.step_timeline import step_timeline
from course_lib.theory.memory.unit_life import COMPUTES, GRADIENTS, REDUCED, WEIGHTS, unit_life
from course_lib.theory.network.unit_costs import unit_costs
from course_lib.trace import FREE, TAKE, Event, Trace

# --- the units of FSDP on two lanes ---------------------------------------------------------------

# 8192 tokens on each of 8 H100 that reach 45 % of their peak, each with a network port of its own.
_RANKS, _TOKENS, _REACHED = 8, 8192, 0.45
_KEY = ("forward", "backward", "all-gather", "reduce-scatter", WEIGHTS, GRADIENTS, "shard")
_DOES = {
    "forward": "{} goes forward",
    "backward": "{} goes backward",
    "all-gather": "{} is being gathered",
    "reduce-scatter": "{}'s gradients are reduced",
}


def fsdp(layers: int = 4, prefetch: int = 1, reshard: bool = True) -> Stepper:
    """Layers of LLaMA-2 7B on 8 GPUs, moment by moment.

    Raises ValueError for starting values outside the sliders.
    """
    controls = {
        "layers": whole("layers", layers, 2, 6),
        "prefetch": whole("prefetch", prefetch, 0, 2, "ahead"),
        "reshard": flag("reshard after forward", reshard),
    }
    return Stepper(controls, _Units)


class _Units(Story):
    def __init__(self, layers: int, prefetch: int, reshard: bool) -> None:
        shape = replace(MODELS["llama2-7b"], layers=layers)
        rate = _REACHED * accelerator("H100-SXM").peak_flop_per_s
        units = unit_costs(shape, Recipe(), _RANKS, NDR, tokens=_TOKENS, flop_per_s=rate)
        self.life = unit_life(units, prefetch=prefetch, reshard=reshard)
        self.trace, self.units = self.life.trace, range(layers + 1)
        self.times = self.trace.times

    def picture(self, step: int) -> Drawing:
        now, trace, over = self.times[step], self.trace, (0.0, self.life.total_s)
        lasting = [event for event in self.life.tasks if event.until > event.at]
        rows = {
            "computing": [event for event in lasting if event.what in COMPUTES],
            "messages": [event for event in lasting if event.what not in COMPUTES],
        }
        levels = {
            kind: Trace(e for e in trace if isinstance(e.part, tuple) and e.part[0] == kind)
            for kind in (WEIGHTS, GRADIENTS)
        }
        curve = Levels(
            {kind: its.levels(0) for kind, its in levels.items()},
            over=over, name="beside shards", now=now,
        )  # fmt: skip
        names = {unit: str(unit) if unit else "root" for unit in self.units}
        states = {unit: self._state(unit, now) for unit in self.units}
        grid = {
            "weights": {names[unit]: cell for unit, (cell, _) in states.items()},
            "gradient": {names[unit]: cell for unit, (_, cell) in states.items()},
        }
        cells = Cells(grid, high={"weights": 40.0, "gradient": 22.0}, below=True, gap=24)
        return page("", Lanes(rows, now=now, over=over), curve, cells, key=_KEY)

    def _state(self, unit: int, now: float) -> tuple[Cell, Cell]:
        """A unit's weights, over its shard, and its gradient; each with a word."""
        held = self.trace.held(now)[0]
        running = {e.what for e in self.trace.running(now) if e.part == unit}
        begun = [(event.what, event.part) for event in self.trace if event.at <= now]
        word = "shard"
        if (WEIGHTS, unit) in held:
            word = "arriving" if "all-gather" in running else "whole"
            asked = begun.count((TAKE, (WEIGHTS, unit))) > begun.count(("all-gather", unit))
            word = "asked" if asked else word
        looks = {"arriving": "all-gather", "whole": WEIGHTS}
        filled = dict.fromkeys(range(5), looks[word]) if word in looks else {}
        works = running & set(COMPUTES)
        frame = "computes" if works else "messages" if word == "asked" else ""
        word = "computes" if works else word
        weights = Cell(word, filled | {5: "shard"}, 6, 1, frame=frame, bold=bool(works))
        leaving = REDUCED in held and held[REDUCED].label == str(unit)
        if "reduce-scatter" in running:
            return weights, Cell("reduced", {0: "reduce-scatter"})
        if leaving:
            return weights, Cell("sent", {}, frame=GRADIENTS)
        if (GRADIENTS, unit) in held:
            return weights, Cell("grows" if works else "waits", {0: GRADIENTS})
        return weights, Cell("none")

    def rows(self, step: int) -> Rows:
        held = self.trace.held(self.times[step])[0].values()
        sent = self.trace.sent()
        return (
            ("whole weights and gradients now", format_bytes(sum(part.bytes for part in held))),
            ("in the whole step", f"{format_duration(self.life.total_s)}; for "
             f"{format_duration(self.life.waiting_s)} of it nothing computes"),
            ("messages", f"{sent['all-gather'].calls} all-gathers, "
             f"{sent['reduce-scatter'].calls} reduce-scatters"),
        )  # fmt: skip

    def caption(self, step: int) -> str:
        """What is under way, and what has just been freed."""
        now = self.times[step]
        if now == self.life.total_s:
            return "Every unit is a shard again, and each rank has its part of every gradient."
        running = self.trace.running(now)
        parts = [_DOES[event.what].format(_unit(event)) for event in running]
        freed = [f"{_unit(e)}'s" for e in self.trace.at(now) if e.what == FREE and e.label]
        if freed:
            parts.append(f"{' and '.join(freed)} whole weights are freed")
        elif parts and not any(event.what in COMPUTES for event in running):
            parts.append("nothing computes")
        text = "; ".join(parts)
        return f"{text[0].upper()}{text[1:]}."


def _unit(event: Event) -> str:
    return "the root" if event.label == "0" else f"layer {event.label}"


# --- the two pairs of buffers of YaFSDP -----------------------------------------------------------


def yafsdp(layers: int = 8) -> Stepper:
    """Layer after layer, forward and backward; what lies in which buffer.

    Raises ValueError for a starting value outside the slider.
    """
    return Stepper({"layers": whole("layers", layers, 3, 16)}, _Buffers)


class _Buffers(Story):
    def __init__(self, layers: int) -> None:
        self.layers, self.trace = layers, buffer_turns(layers)

    def moving(self, step: int) -> tuple[Event, int | None, int | None]:
        """The pass, the layer that arrives, and the one whose gradients leave."""
        by_name = {event.what: event for event in self.now(step) if event.what != TAKE}
        (work,) = (event for what, event in by_name.items() if what in COMPUTES)
        layers = [by_name.get(what) for what in ("all-gather", "reduce-scatter")]
        arriving, leaving = (event and int(event.label) for event in layers)
        return work, arriving, leaving

    def picture(self, step: int) -> Drawing:
        work, arriving, leaving = self.moving(step)
        held, here = self.trace.held(step)[0], int(work.label)
        row = "forward →" if work.what == "forward" else "← backward"
        path = {
            str(n): Cell(str(n), {0: work.what if n == here else "others"}, bold=n == here)
            for n in range(self.layers)
        }

        def buffer(kind: str, odd: int) -> Cell:
            if (kind, odd) not in held:
                return Cell("empty")
            layer = int(held[kind, odd].label)
            if layer == here:
                does = "computes with them" if kind == WEIGHTS else "being computed"
                return Cell(f"layer {layer}: {does}", {0: kind})
            if kind == WEIGHTS and layer == arriving:
                return Cell(f"layer {layer}: arrives", {0: "all-gather"})
            if kind == GRADIENTS and layer == leaving:
                return Cell(f"layer {layer}: reduced, on its way out", {0: "reduce-scatter"})
            return Cell(f"layer {layer}: still here", {0: "others"})

        grid = {
            name: {f"{side} layers": buffer(kind, odd) for odd, side in enumerate(("even", "odd"))}
            for name, kind in (("gathered", WEIGHTS), ("gradients", GRADIENTS))
        }
        key = ("forward", "backward", WEIGHTS, GRADIENTS, "all-gather", "reduce-scatter")
        layers = Cells({row: path}, heads=False, high=24, gap=3, bold=(row,))
        said = f"{work.what} of layer {here} from buffer {here % 2}".capitalize()
        return page("", layers, Cells(grid, high=40, gap=30), key=key, sentence=said)

    def caption(self, step: int) -> str:
        """Who computes, what arrives, what leaves."""
        work, arriving, leaving = self.moving(step)
        layer, said = int(work.label), []
        if arriving is not None:
            said.append(f"layer {arriving} arrives")
        elif work.what == "backward" and layer:
            said.append(f"layer {layer - 1} is still here, without a gather")
        elif work.what == "forward":
            said.append("it is the last one, so nothing arrives")
        if leaving is not None:
            said.append(f"layer {leaving}'s gradients leave")
        place = ("even", "odd")[layer % 2]
        return f"Layer {layer} goes {work.what} from the {place} buffer; {', '.join(said)}."


# --- a training step, and what is in the memory at each moment ------------------------------------

_NAMED = 3  # in the table; the picture shows the others
_CAPTIONS = {
    ("forward", "embedding"): "The tokens become vectors. Nothing is kept for backward yet.",
    ("forward", "layer"): "{} computes, and leaves its intermediate results for backward.",
    ("forward", "again"): "{} computes, and keeps only its input for backward.",
    ("backward", "again"): "{} is computed once more: all it had thrown away is there again.",
    ("forward", "head"): "The head and the loss leave their results too: forward is over.",
    ("backward", "loss"): "Backward begins: "
    "the logits' gradients come on top of all that was kept.",
    ("backward", "layer"): "Backward through {}: what it kept is used for the last time.",
    ("backward", "end"): "Backward ends at the embedding: now all gradients are there.",
    ("update", "update"): "The optimizer reads the gradients and changes the weights.",
    ("update", "after"): "The gradients are thrown away. The next step begins as this one did.",
}


def memory_step(layers: int = 4, samples: int = 8, recompute: str = "none") -> Stepper:
    """One update of the chapter's small GPT in fp32, moment by moment.

    Raises ValueError for starting values outside the controls.
    """
    controls = {
        "layers": whole("layers", layers, 2, 8),
        "samples": powers_of_two("samples", samples, 1, 64),
        "recompute": choice("recompute", recompute, ["none", "full"]),
    }
    return Stepper(controls, _Step)


class _Step(Story):
    def __init__(self, layers: int, samples: int, recompute: str) -> None:
        shape = TransformerShape(layers, hidden=64, heads=4, ffn=256, vocab=128, context=64)
        recipe = Recipe("fp32", "fp32", master_copy=False, gradient_life="backward", loss="eager")
        job = Job(shape, replace(recipe, recompute=recompute), Layout(micro_batch=samples))
        self.run, self.recompute = step_timeline(job, overhead_bytes=0), recompute
        self.trace = self.run.trace

    def held(self, step: int) -> Mapping[str, int]:
        return {str(name): part.bytes for name, part in self.trace.held(step)[0].items()}

    def picture(self, step: int) -> Drawing:
        moments, over, now = self.run.steps, (0.0, float(self.count)), step + 1.0
        passes = [event for event in self.trace if event.what != TAKE]
        stretches = [list(its) for _, its in groupby(passes, lambda one: one.what)]
        phases = [its[0]._replace(end=its[-1].until, label=its[0].what) for its in stretches]
        sizes = self.run.sizes  # what is always there lies below
        names = [
            name for name in dict.fromkeys(("weights", "optimizer", *sizes)) if any(sizes[name])
        ]
        levels = {name: list(enumerate(sizes[name])) for name in names}
        strip = Lanes({"": phases}, over=over, now=now, foot=False)
        curve = Levels(levels, over=over, name="in memory", now=now, high=150,
                       looks={"inputs and labels": (style.PALE, "/")})  # fmt: skip
        size, peak = format_bytes(moments[step].bill.total_bytes), self.run.peak
        title = f"now {size}: {moments[step].phase}, {moments[step].what}"
        note = f"The peak of {format_bytes(self.run.peak_bytes)}: {peak.phase}, {peak.what}."
        said = f"Moment {step + 1} of {self.count}, {title}"
        return page(title, curve, strip, key=names, notes=[note], sentence=said)

    def rows(self, step: int) -> Rows:
        held, before = self.held(step), self.held(max(0, step - 1))
        changed = [
            f"{name} {'+' if size > before.get(name, 0) else '−'}"
            f"{format_bytes(abs(size - before.get(name, 0)))}"
            for name, size in held.items()
            if size != before.get(name, 0)
        ]
        return (
            ("in memory", format_bytes(sum(held.values()))),
            ("of it", _largest(held)),
            ("change", ", ".join(changed) or "none"),
        )

    def caption(self, step: int) -> str:
        now = self.run.steps[step]
        kind = "end" if now.what.endswith("end") else now.what.split()[0]
        if kind == "layer" and self.recompute == "full":
            kind = "again"
        sentence = _CAPTIONS[now.phase, kind].format(now.what)
        return sentence[0].upper() + sentence[1:]


def _largest(held: Mapping[str, int]) -> str:
    """The three that hold most, and all others together: it fits in a line."""
    sizes = sorted(((size, name) for name, size in held.items() if size), reverse=True)
    said = [f"{name} {format_bytes(size)}" for size, name in sizes[:_NAMED]]
    if rest := sum(size for size, _ in sizes[_NAMED:]):
        said.append(f"the rest {format_bytes(rest)}")
    return ", ".join(said)


# --- a layer forward and backward, and what is held meanwhile -------------------------------------

_RECOMPUTE = {"nothing": "none", "attention": "selective", "the whole layer": "full"}
_GOING = {"forward": "forward", "again": "computed again", "backward": "backward"}
_SLOTS = 60  # of the widest bar
_HELD = "What each operation has stored for the backward pass, and its bytes."
_LINES = [*OPERATIONS[:3], "its scores", *OPERATIONS[3:]]


def layer(recompute: str = "none", attention: str = "standard") -> Stepper:
    """The story of `layer_walk` for a layer of GPT-3, one sequence of 2048 tokens.

    Raises ValueError for starting values that are not offered.
    """
    controls = {
        "recompute": choice("recompute", recompute, _RECOMPUTE),
        "attention": choice("attention", attention, ["standard", "flash"]),
    }
    return Stepper(controls, _Layer)


class _Layer(Story):
    def __init__(self, recompute: str, attention: str) -> None:
        recipe = Recipe(recompute=recompute, attention=attention, dropout=True)
        self.walk = layer_walk(Job(MODELS["gpt3-175b"], recipe, sequence=2048))
        self.trace, self.steps = self.walk.trace, self.walk.steps
        self.count = len(self.steps) + 1
        self.lines: dict[str, list[SavedTensor]] = {name: [] for name in _LINES}
        for one in self.walk.tensors:
            self.lines["its scores" if one.scores else one.saver].append(one)
        self.most = max(sum(one.size_bytes for one in its) for its in self.lines.values())

    def changed(self, step: int, what: str) -> list[SavedTensor]:
        parts = [event.part for event in self.trace.at(step) if event.what == what]
        return [one for one in self.walk.tensors if one in parts]

    def picture(self, step: int) -> Drawing:
        held = self.trace.held(step)[0]
        new, gone = self.changed(step, TAKE), self.changed(step, FREE)
        doing = self.steps[step - 1] if step else None

        def line(name: str, tensors: list[SavedTensor]) -> dict[str, Cell]:
            shown = [one for one in tensors if one.size_bytes and (one in held or one in gone)]
            used = bool(shown) and all(one in gone for one in shown)
            size = sum(one.size_bytes for one in shown)
            wide = max(1, round(_SLOTS * size / self.most)) if shown else 0
            filled = dict.fromkeys(range(wide), "others" if used else "activations")
            names = [one.name.split("'s ")[-1] if n else one.name for n, one in enumerate(shown)]
            text = f"{'used: ' * used}{', '.join(names)}, {format_bytes(size)}" if shown else ""
            bold = any(one in new for one in shown)
            frame = "backward" if used else "forward" if bold else ""
            now = doing is not None and doing.part == name
            return {
                "way": Cell("", {0: doing.what} if doing and now else {}, int(now)),
                "held": Cell(text, slots=0, bold=bold, wide=4),
                **dict.fromkeys("abc", Cell(slots=0)),
                "bytes": Cell("", filled, _SLOTS, frame=frame, wide=3),
                **dict.fromkeys("de", Cell(slots=0)),
            }

        way = [(name, "way") for name in (_LINES[0], _LINES[-1])]
        if doing and doing.what == "backward":
            way.reverse()
        table = Cells(
            {name: line(name, its) for name, its in self.lines.items()},
            past=[(way[0], way[1])] if doing else [],
            heads=False,
            high=16,
            gap=8,
            bold=[str(doing.part)] if doing else [""],
            note=_HELD,
        )
        over, now = (0.0, float(self.count)), step + 1.0
        turn = float(sum(event.what == "forward" for event in self.steps) + 1)
        marks = {"the other layers run here": turn}
        strip = Lanes({"": self._passes()}, over=over, now=now, foot=False, marks=marks)
        levels = {"activations": self.trace.levels(0)}
        curve = Levels(levels, over=over, name="held", now=now)
        title = f"{_GOING[doing.what]}: {doing.part}" if doing else "before the layer"
        now, kept = self.walk.held_bytes(step), self.walk.kept_bytes
        note = f"Now {format_bytes(now)}, most {format_bytes(self.walk.peak_bytes)}, "
        note += (
            f"between the passes {format_bytes(kept)}. One layer of GPT-3, 2048 tokens, 16 bits."
        )
        said = f"Step {step} of {self.count - 1}, {title}"
        return page(title, table, curve, strip, key=(), notes=[note], sentence=said)

    def _passes(self) -> list[Event]:
        """Stretches of operations in one direction."""
        stretches = [list(its) for _, its in groupby(self.steps, lambda one: one.what)]
        return [its[0]._replace(end=its[-1].at + 1, label=_GOING[its[0].what]) for its in stretches]

    def rows(self, step: int) -> Rows:
        return (
            ("held now", format_bytes(self.walk.held_bytes(step))),
            ("held while the other layers run", format_bytes(self.walk.kept_bytes)),
        )

    def caption(self, step: int) -> str:
        if not step:
            return "The layer has not begun, and nothing is held."
        doing = self.steps[step - 1]
        name, kept, gone = str(doing.part), self.changed(step, TAKE), self.changed(step, FREE)
        if doing.what == "forward":
            what = f"backward will need {_names(kept)}" if kept else "nothing is kept for backward"
            return f"Forward, {name}: {what}."
        if doing.what == "again":
            what = f"now it keeps {_names(kept)}" if kept else "nothing new is kept"
            return f"{name[0].upper()}{name[1:]} once more, and {what}."
        what = f"it uses and frees {_names(gone)}" if gone else "it needs nothing that was kept"
        return f"Backward, {name}: {what}."


def _names(tensors: list[SavedTensor]) -> str:
    """All their names and the bytes of all."""
    size = format_bytes(sum(one.size_bytes for one in tensors))
    return f"{', '.join(one.name for one in tensors)} ({size})"
