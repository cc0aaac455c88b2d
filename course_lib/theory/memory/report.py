"""How a GPU's memory comes about, one line per term with its numbers."""

from dataclasses import fields

from course_lib.theory.inputs.layout import Layout
from course_lib.theory.inputs.recipe import OPTIMIZER_STATE_BYTES, Recipe
from course_lib.theory.inputs.shape import TransformerShape
from course_lib.theory.inputs.units import format_bytes
from course_lib.theory.memory.activations import layer_activation_bytes
from course_lib.theory.memory.peak import gpu_memory
from course_lib.theory.memory.states import layer_kinds, local_parameters


def explain_memory(
    shape: TransformerShape,
    recipe: Recipe,
    layout: Layout,
    sequence: int | None = None,
    stage: int = 0,
    unit: str = "GB",
) -> str:
    """The derivation of `gpu_memory` for one stage: convention, shares, then every leaf and total.

    Raises ValueError as `gpu_memory` does, and for a `unit` other than "GB" and "GiB".
    """
    sequence = shape.context if sequence is None else sequence
    bill = gpu_memory(shape, recipe, layout, sequence, stage)
    leaves = {leaf.name.removesuffix("_bytes"): getattr(bill, leaf.name) for leaf in fields(bill)}
    sizes = [f"{name:<20}{format_bytes(size, unit):>12}" for name, size in leaves.items() if size]
    return "\n".join(
        [
            _convention(recipe),
            *_parameter_lines(shape, layout, stage),
            *_activation_lines(shape, recipe, layout, sequence, stage, unit),
            *sizes,
            f"{'total':<20}{format_bytes(bill.total_bytes, unit):>12}",
        ]
    )


def _convention(recipe: Recipe) -> str:
    """The bytes of one parameter, kind by kind."""
    parts = [
        f"weights {recipe.weight_bytes} ({recipe.parameters})",
        f"gradients {recipe.gradient_bytes} ({recipe.gradients})",
        *["fp32 gradient buffer 4"] * recipe.gradient_buffer,
        *["fp32 master copy 4"] * recipe.master_copy,
        f"states {OPTIMIZER_STATE_BYTES[recipe.optimizer]}",
    ]
    total = recipe.bytes_per_parameter
    return f"{recipe.optimizer}: {' + '.join(parts)} = {total} B per parameter"


def _parameter_lines(shape: TransformerShape, layout: Layout, stage: int) -> list[str]:
    """What pipeline, tensor and expert parallelism leave this GPU, and over how many ZeRO cuts."""
    local = local_parameters(shape, layout, stage)
    shards = {"optimizer": 1, "gradients": 2, "parameters": 3}
    cut = [name for name, least in shards.items() if layout.zero_stage >= least]
    lines = [
        f"stage {stage} of pp {layout.pp}, 1/{layout.tp} by tp: {local.dense:,} dense parameters"
        f" (of {shape.parameters().total:,} in the model)"
    ]
    if local.experts:
        lines.append(f"1/{layout.ep} of the experts by ep: {local.experts:,} parameters")
    if cut:
        lines.append(
            f"ZeRO-{layout.zero_stage} cuts {', '.join(cut)} over dp·cp = {layout.shard_ranks}"
            + (f", of experts over dp·cp/ep = {layout.expert_shard_ranks}" * bool(local.experts))
        )
    return lines


def _activation_lines(
    shape: TransformerShape,
    recipe: Recipe,
    layout: Layout,
    sequence: int,
    stage: int,
    unit: str,
) -> list[str]:
    """Micro-batches in flight × layers × bytes of one, for each chunk of the stage."""
    lines, sizes = [], layout.chunk_layers(shape)
    for chunk, held in layout.in_flight(stage).items():
        start = sum(sizes[:chunk])
        for layer, count in layer_kinds(shape, start, start + sizes[chunk]):
            where = (shape, recipe, layout.micro_batch, sequence, layout, layer)
            each = format_bytes(layer_activation_bytes(*where), unit)
            kind = " with experts" * shape.has_experts(layer)
            lines.append(
                f"{layout.schedule}, recompute {recipe.recompute}: {held} micro-batches × {count} "
                f"layers{kind} × {each}"
            )
    return lines
