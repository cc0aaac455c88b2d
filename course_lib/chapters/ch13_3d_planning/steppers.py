"""The story of chapter 13 that a learner steps through."""

from dataclasses import replace

from course_lib.figures.engines.cells import Cell, Cells
from course_lib.figures.engines.page import page
from course_lib.figures.paper.drawing import Drawing
from course_lib.panels.controls import choice, whole
from course_lib.panels.panel import Rows
from course_lib.panels.stepper import Stepper, Story
from course_lib.theory.inputs.hardware import Cluster, accelerator
from course_lib.theory.inputs.job import Job
from course_lib.theory.inputs.layout import Layout
from course_lib.theory.inputs.models import MODELS
from course_lib.theory.inputs.units import format_bytes
from course_lib.theory.network.mesh import Talk, place, sent_bytes, sent_in_turn, who_talks

_MOST_NAMED = 8
_SLOTS = 100  # in the widest bar
_UPDATE = Layout(accumulation=8, zero_stage=1)


# The model and the layout by the label of the choice.
_BLOCKS = {
    "tp 2 × dp 4 × pp 2": ("llama2-70b", replace(_UPDATE, tp=2, dp=4, pp=2)),
    "tp 8 × dp 4 × pp 4": ("llama2-70b", replace(_UPDATE, tp=8, dp=4, pp=4)),
    "tp 4 × cp 2 × dp 2 × pp 4": ("llama2-70b", replace(_UPDATE, tp=4, cp=2, dp=2, pp=4)),
    "tp 2 × dp 8 × pp 2, ep 4": ("mixtral-8x7b", replace(_UPDATE, tp=2, dp=8, pp=2, ep=4)),
}
_AXES = {
    "tp": "tensor (tp)",
    "cp": "context (cp)",
    "ep": "expert (ep)",
    "dp": "data (dp)",
    "pp": "pipeline (pp)",
}
_WHEN = {
    ("tp", "activations"): "in every layer, and the next matrix waits",
    ("cp", "activations"): "in every layer, while attention computes with what is here",
    ("cp", "gradients"): "in every layer of the backward pass",
    ("ep", "activations"): "in every layer with experts",
    ("pp", "activations"): "after the last layer of a stage, for each micro-batch",
    ("pp", "gradients"): "on the way back, for each micro-batch",
    ("dp", "gradients"): "once, at the end",
    ("dp", "parameters"): "after the update",
}


def talks(block: str = "tp 2 × dp 4 × pp 2", rank: int = 0) -> Stepper:
    """Step through the messages of `who_talks` for one rank of LLaMA-2 70B, or Mixtral with ep.

    Raises ValueError for starting values that are not offered.
    """
    controls = {"block": choice("block", block, list(_BLOCKS)), "rank": whole("rank", rank, 0, 15)}
    return Stepper(controls, _Talks)


class _Talks(Story):
    """A cell for every rank, stages side by side; a shade for each communicating group."""

    def __init__(self, block: str, rank: int) -> None:
        name, layout = _BLOCKS[block]
        self.cluster = Cluster(accelerator("H100-SXM"), nodes=layout.world // 8)
        self.job = Job(MODELS[name], layout=layout, cluster=self.cluster, sequence=4096)
        self.rank, self.talks = rank, who_talks(self.job, rank)
        self.trace = sent_in_turn(self.talks, rank)

    def picture(self, step: int) -> Drawing:
        talk = self.talks[step]
        message, layout = talk.message, self.job.layout
        where = "inside a node" if talk.nodes == 1 else "over the network"
        volume = f"{message.count} × {format_bytes(message.sent_bytes)} from each GPU, {where}"
        if message.operation == "send-recv":
            volume += f", to the {'previous' if message.kind == 'gradients' else 'next'} stage"
        group = {rank: number for number, ranks in enumerate(talk.groups) for rank in ranks}
        per_node, many = self.cluster.gpus_per_node, layout.tp * layout.pp > 16
        grid: dict[str, dict[str, Cell]] = {}
        for rank in range(layout.world):
            coordinates = place(layout, rank)
            row = f"dp {coordinates['dp']}" + (f", cp {coordinates['cp']}" if layout.cp > 1 else "")
            word = f"later {message.axis}" if group.get(rank, 1) % 2 == 0 else "others"
            cell = Cell(
                str(rank),
                {0: message.axis if rank in talk.group else word},
                frame="own node" if rank // per_node == self.rank // per_node else "",
                bold=rank == self.rank,
            )
            tp = coordinates["tp"] if many else f"tp {coordinates['tp']}"
            grid.setdefault(row, {})[f"stage {coordinates['pp']}\n{tp}"] = cell
        title = f"{_AXES[message.axis]}: {message.operation} of {in_words(message.what)}"
        ranks = Cells(grid, high=min(28.0, 168.0 / len(grid) - 5),
                      gap=1.5 if many else 3, note=volume)  # fmt: skip
        said = f"rank {self.rank} with {', '.join(map(str, talk.group))}, {where}"
        return page(title, ranks, self._sums(step), key=(), notes=[_LEGEND.format(self.rank)],
                    sentence=f"{layout.world} ranks, {title}: {said}")  # fmt: skip

    def _sums(self, step: int) -> Cells:
        """Bytes that this GPU sends in an update, by axis: so far in colour, the rest pale."""
        axes = dict.fromkeys(talk.message.axis for talk in self.talks)
        totals = {axis: sent_bytes(self.talks, axis) for axis in axes}
        scale, grid = _SLOTS / max(totals.values()), {}
        for axis, size in totals.items():
            sent = sent_bytes(self.talks[: step + 1], axis)
            filled = dict.fromkeys(range(max(1, round(size * scale))), "others")
            filled |= dict.fromkeys(range(max(sent > 0, round(sent * scale))), axis)
            text = f"{format_bytes(sent)} of {format_bytes(size)}"
            bar = Cell("", filled, _SLOTS, wide=2)
            grid[_AXES[axis]] = {"bytes": bar, " ": Cell(slots=0), "so far": Cell(text, slots=0)}
        return Cells(grid, high=12, heads=False, note="sent by this GPU in one update")

    def rows(self, step: int) -> Rows:
        talk, message = self.talks[step], self.talks[step].message
        often = "once" if message.count == 1 else f"{message.count:,} times"
        nodes = "inside one node" if talk.nodes == 1 else f"over {talk.nodes} nodes"
        return (
            ("one message", format_bytes(message.sent_bytes)),
            ("in an update", f"{often}, {format_bytes(message.total_bytes)}"),
            ("wire", f"{message.link.name}, {nodes}"),
        )

    def caption(self, step: int) -> str:
        message, others = self.talks[step].message, self._partners(self.talks[step])
        named = ", ".join(others[:_MOST_NAMED])
        if len(others) > _MOST_NAMED:
            named += f" and {len(others) - _MOST_NAMED} more"
        when = _WHEN[message.axis, message.kind]
        if message.place in ("embedding", "head"):
            when = "for each micro-batch"
        what = in_words(message.what)
        return f"{what[0].upper()}{what[1:]}: rank {self.rank} talks to {named} {when}."

    def _partners(self, talk: Talk) -> list[str]:
        """The ranks a message goes to: the next or previous stage, or the rest of the group."""
        message, own = talk.message, talk.group.index(self.rank)
        if message.axis == "pp" and message.operation == "send-recv":
            return [str(talk.group[own + (1 if message.kind == "activations" else -1)])]
        return [str(rank) for rank in talk.group if rank != self.rank]


_LEGEND = (
    "Full colour: the group of rank {}; equal shades side by side: other groups. Framed: its node."
)


def in_words(what: str) -> str:
    """The reader's name of a message: the "ends" of the model are embedding and head."""
    return what.replace("of ends", "of embedding and head")
