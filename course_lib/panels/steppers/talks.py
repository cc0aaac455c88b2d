"""The stepper of chapter 13: who talks to whom, message by message of one update."""

from dataclasses import dataclass, replace

from course_lib import figures
from course_lib.figures.steps.mesh_step import in_words
from course_lib.panels.controls import choice, whole
from course_lib.panels.panel import View
from course_lib.panels.stepper import Stepper, Story
from course_lib.theory.inputs.cluster import Cluster
from course_lib.theory.inputs.hardware import accelerator
from course_lib.theory.inputs.job import Job
from course_lib.theory.inputs.layout import Layout
from course_lib.theory.inputs.models import MODELS
from course_lib.theory.inputs.units import format_bytes
from course_lib.theory.network.who_talks import Talk, who_talks

_MOST_NAMED = 8
_UPDATE = Layout(accumulation=8, zero_stage=1)
# By what the list of choices says: the model, and how its ranks stand.
_BLOCKS = {
    "tp 2 × dp 4 × pp 2": ("llama2-70b", replace(_UPDATE, tp=2, dp=4, pp=2)),
    "tp 8 × dp 4 × pp 4": ("llama2-70b", replace(_UPDATE, tp=8, dp=4, pp=4)),
    "tp 4 × cp 2 × dp 2 × pp 4": ("llama2-70b", replace(_UPDATE, tp=4, cp=2, dp=2, pp=4)),
    "tp 2 × dp 8 × pp 2, ep 4": ("mixtral-8x7b", replace(_UPDATE, tp=2, dp=8, pp=2, ep=4)),
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


@dataclass(frozen=True)
class _Told:
    """One update on one block."""

    job: Job
    rank: int
    talks: tuple[Talk, ...]


def talks(block: str = "tp 2 × dp 4 × pp 2", rank: int = 0) -> Stepper:
    """The messages of `who_talks` for one rank: LLaMA-2 70B, or Mixtral where there are experts.

    Raises ValueError for starting values that are not offered.
    """
    controls = {
        "block": choice("block", block, list(_BLOCKS)),
        "rank": whole("rank", rank, 0, 15),
    }
    return Stepper(controls, _story)


def _story(block: str, rank: int) -> Story:
    name, layout = _BLOCKS[block]
    cluster = Cluster(accelerator("H100-SXM"), nodes=layout.world // 8)
    job = Job(MODELS[name], layout=layout, cluster=cluster, sequence=4096)
    told = _Told(job, rank, who_talks(job, rank))
    return Story(len(told.talks), lambda step: _view(told, step))


def _view(told: _Told, step: int) -> View:
    talk = told.talks[step]
    message = talk.message
    rows = (
        ("one message", format_bytes(message.sent_bytes)),
        ("in an update", f"{_often(message.count)}, {format_bytes(message.total_bytes)}"),
        ("wire", f"{message.link.name}, {_nodes(talk)}"),
    )
    return View(
        talk,
        rows,
        lambda: figures.mesh_step(told.job, told.talks, step, told.rank),
        _caption(told, talk),
    )


def _often(count: int) -> str:
    return "once" if count == 1 else f"{count:,} times"


def _nodes(talk: Talk) -> str:
    return "inside one node" if talk.nodes == 1 else f"over {talk.nodes} nodes"


def _partners(told: _Told, talk: Talk) -> list[str]:
    """Those whom a message goes to: the next or the previous stage, or the rest of the group."""
    message, place = talk.message, talk.group.index(told.rank)
    if message.axis == "pp" and message.operation == "send-recv":
        return [str(talk.group[place + (1 if message.kind == "activations" else -1)])]
    return [str(rank) for rank in talk.group if rank != told.rank]


def _caption(told: _Told, talk: Talk) -> str:
    message = talk.message
    others = _partners(told, talk)
    named = ", ".join(others[:_MOST_NAMED])
    if len(others) > _MOST_NAMED:
        named += f" and {len(others) - _MOST_NAMED} more"
    when = _WHEN[message.axis, message.kind]
    if message.place in ("embedding", "head"):
        when = "for each micro-batch"
    what = in_words(message.what)
    return f"{what[0].upper()}{what[1:]}: rank {told.rank} talks to {named} {when}."
