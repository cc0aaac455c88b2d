"""The stories of chapter 9 that a learner steps through."""

from dataclasses import replace

from course_lib.figures.engines.cells import Cell, Cells
from course_lib.figures.engines.lanes import Lanes, Levels
from course_lib.figures.engines.page import page
from course_lib.figures.paper.drawing import Drawing
from course_lib.panels.controls import flag, whole
from course_lib.panels.panel import Rows
from course_lib.panels.stepper import Stepper, Story
from course_lib.theory.inputs.hardware import NDR, accelerator
from course_lib.theory.inputs.models import MODELS
from course_lib.theory.inputs.recipe import Recipe
from course_lib.theory.inputs.units import format_bytes, format_duration
from course_lib.theory.memory.unit_life import (
    COMPUTES,
    GRADIENTS,
    REDUCED,
    WEIGHTS,
    buffer_turns,
    unit_life,
)
from course_lib.theory.network.zero import unit_costs
from course_lib.trace import FREE, TAKE, Event, Trace

# 8192 tokens on each of 8 H100s that reach 45 % of their peak; each has its own network port.
_RANKS, _TOKENS, _REACHED = 8, 8192, 0.45
_KEY = ("forward", "backward", "all-gather", "reduce-scatter", WEIGHTS, GRADIENTS, "shard")
_DOES = {
    "forward": "{} goes forward",
    "backward": "{} goes backward",
    "all-gather": "{} is being gathered",
    "reduce-scatter": "{}'s gradients are reduced",
}


def fsdp(layers: int = 4, prefetch: int = 1, reshard: bool = True) -> Stepper:
    """Step through FSDP of some layers of LLaMA-2 7B on 8 GPUs, event by event.

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
            {kind: events.levels(0) for kind, events in levels.items()},
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
        """Labelled cells of a unit's weights, above its shard, and of its gradient."""
        held = self.trace.held(now)[0]
        running = {e.what for e in self.trace.running(now) if e.part == unit}
        started = [(event.what, event.part) for event in self.trace if event.at <= now]
        word = "shard"
        if (WEIGHTS, unit) in held:
            word = "arriving" if "all-gather" in running else "whole"
            requested = started.count((TAKE, (WEIGHTS, unit))) > started.count(("all-gather", unit))
            word = "asked" if requested else word
        looks = {"arriving": "all-gather", "whole": WEIGHTS}
        filled = dict.fromkeys(range(5), looks[word]) if word in looks else {}
        passes = running & set(COMPUTES)
        frame = "computes" if passes else "messages" if word == "asked" else ""
        word = "computes" if passes else word
        weights = Cell(word, filled | {5: "shard"}, 6, 1, frame=frame, bold=bool(passes))
        being_reduced = REDUCED in held and held[REDUCED].label == str(unit)
        if "reduce-scatter" in running:
            return weights, Cell("reduced", {0: "reduce-scatter"})
        if being_reduced:
            return weights, Cell("sent", {}, frame=GRADIENTS)
        if (GRADIENTS, unit) in held:
            return weights, Cell("grows" if passes else "waits", {0: GRADIENTS})
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
        """Which tasks are running, and which weights have just been freed."""
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


def yafsdp(layers: int = 8) -> Stepper:
    """Step through YaFSDP, layer by layer, forward and backward, with the contents of each buffer.

    Raises ValueError for a starting value outside the slider.
    """
    return Stepper({"layers": whole("layers", layers, 3, 16)}, _Buffers)


class _Buffers(Story):
    def __init__(self, layers: int) -> None:
        self.layers, self.trace = layers, buffer_turns(layers)

    def moving(self, step: int) -> tuple[Event, int | None, int | None]:
        """The running pass, the layer being gathered, and the layer whose gradients are reduced."""
        by_name = {event.what: event for event in self.now(step) if event.what != TAKE}
        (work,) = (event for what, event in by_name.items() if what in COMPUTES)
        layers = [by_name.get(what) for what in ("all-gather", "reduce-scatter")]
        arriving, leaving = (event and int(event.label) for event in layers)
        return work, arriving, leaving

    def picture(self, step: int) -> Drawing:
        work, arriving, leaving = self.moving(step)
        held, current = self.trace.held(step)[0], int(work.label)
        row = "forward →" if work.what == "forward" else "← backward"
        path = {
            str(n): Cell(str(n), {0: work.what if n == current else "others"}, bold=n == current)
            for n in range(self.layers)
        }

        def buffer(kind: str, odd: int) -> Cell:
            if (kind, odd) not in held:
                return Cell("empty")
            layer = int(held[kind, odd].label)
            if layer == current:
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
        said = f"{work.what} of layer {current} from buffer {current % 2}".capitalize()
        return page("", layers, Cells(grid, high=40, gap=30), key=key, sentence=said)

    def caption(self, step: int) -> str:
        """Which layer computes, which one is gathered, and whose gradients are reduced."""
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
        parity = ("even", "odd")[layer % 2]
        return f"Layer {layer} goes {work.what} from the {parity} buffer; {', '.join(said)}."
