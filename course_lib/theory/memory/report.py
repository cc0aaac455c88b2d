"""How a GPU's memory comes about, one line per term with its numbers."""

from dataclasses import fields

from course_lib.theory.inputs.job import Job
from course_lib.theory.inputs.recipe import OPTIMIZER_STATE_BYTES, Recipe
from course_lib.theory.inputs.units import format_bytes
from course_lib.theory.memory.activations import layer_activation_bytes
from course_lib.theory.memory.peak import held_at_peak, memory_moments
from course_lib.theory.memory.states import local_parameters


def explain_memory(job: Job, stage: int = 0, *, unit: str = "GB") -> str:
    """The derivation of `gpu_memory` for one stage: convention, shares, then every leaf and total.

    Raises ValueError as `gpu_memory` does, and for a `unit` other than "GB" and "GiB".
    """
    moments = memory_moments(job, stage)
    peak = max(moments, key=lambda name: moments[name].total_bytes)
    bill = moments[peak]
    leaves = {leaf.name.removesuffix("_bytes"): getattr(bill, leaf.name) for leaf in fields(bill)}
    sizes = [f"{name:<20}{format_bytes(size, unit):>12}" for name, size in leaves.items() if size]
    return "\n".join(
        [
            _convention(job.recipe),
            f"{_assumed(job)}; the peak is at the moment {peak!r}",
            *_parameter_lines(job, stage),
            *_activation_lines(job, stage, unit),
            *sizes,
            f"{'total':<20}{format_bytes(bill.total_bytes, unit):>12}",
        ]
    )


def _convention(recipe: Recipe) -> str:
    """The bytes of one parameter, kind by kind."""
    parts = [
        f"weights {recipe.weight_bytes} ({recipe.parameters})",
        f"gradients {recipe.gradient_bytes} ({recipe.gradients})",
    ]
    if recipe.gradient_buffer:
        parts.append("fp32 gradient buffer 4")
    if recipe.master_copy:
        parts.append("fp32 master copy 4")
    parts.append(f"states {OPTIMIZER_STATE_BYTES[recipe.optimizer]}")
    total = recipe.bytes_per_parameter
    return f"{recipe.optimizer}: {' + '.join(parts)} = {total} B per parameter"


def _assumed(job: Job) -> str:
    """What the frameworks do differently, as it is assumed here."""
    recipe, layout = job.recipe, job.layout
    kept = {
        "weights stay gathered": not layout.reshard,
        "whole gradients add up": layout.adds_up and layout.reduces == "update",
        "whole gradients of one chunk add up": layout.adds_up and layout.reduces == "group",
        "gathered inputs are kept": layout.keep_gathered,
        "sent outputs are kept": layout.keep_outputs,
    }
    life = {"always": "stay", "backward": "live from the backward pass to the update"}
    parts = [
        f"loss {recipe.loss}",
        f"gradients {life[recipe.gradient_life]}",
        f"update {recipe.update}",
        *(what for what, so in kept.items() if so),
    ]
    return f"assumed: {', '.join(parts)}"


def _parameter_lines(job: Job, stage: int) -> list[str]:
    """What pipeline, tensor and expert parallelism leave this GPU, and over how many ZeRO cuts."""
    layout, local = job.layout, local_parameters(job.shape, job.layout, stage)
    shards = {"optimizer": 1, "gradients": 2, "parameters": 3}
    cut = [name for name, least in shards.items() if layout.zero_stage >= least]
    lines = [
        f"stage {stage} of pp {layout.pp}, 1/{layout.tp} by tp: {local.dense:,} dense parameters"
        f" (of {job.shape.parameters().total:,} in the model)"
    ]
    if local.experts:
        lines.append(f"1/{layout.ep} of the experts by ep: {local.experts:,} parameters")
    if cut:
        line = f"ZeRO-{layout.zero_stage} cuts {', '.join(cut)} over dp·cp = {layout.shard_ranks}"
        if local.experts:
            line += f", of experts over dp·cp/ep = {layout.expert_shard_ranks}"
        lines.append(line)
    return lines


def _activation_lines(job: Job, stage: int, unit: str) -> list[str]:
    """Micro-batches in flight × layers × bytes of one, for each chunk of the stage."""
    lines = []
    for chunk, held in held_at_peak(job, stage).items():
        for its, layer, count in job.layers_of(chunk):
            each = format_bytes(layer_activation_bytes(its, layer), unit)
            kind = " with experts" if job.shape.has_experts(layer) else ""
            lines.append(
                f"{job.layout.schedule}, recompute {its.recipe.recompute}: {held} micro-batches × "
                f"{count} layers{kind} × {each}"
            )
    return lines
