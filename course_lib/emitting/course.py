"""Which of the course's own programs trains a plan."""

from course_lib.theory.inputs.job import Job
from course_lib.theory.inputs.shape import TransformerShape

VOCAB = 128  # of the text that the demos train on: ASCII
_SCHEDULES = ("naive", "gpipe", "1f1b", "interleaved")


def program(job: Job) -> list[str]:
    """Behind torchrun: the demo `three_d` with the plan's settings; nothing if it cannot run it.

    It trains a small GPT in fp32 on dp × tp × pp ranks, without ZeRO, and prints what it sent.
    """
    shape, layout = job.shape, job.layout
    if not (_is_small_gpt(job) and _is_plain(job)):
        return []
    options = {
        "model": f"{shape.layers}x{shape.hidden}x{shape.heads}",
        "sequence": job.sequence,
        "batch": layout.global_batch,
        "micro-batches": layout.accumulation,
        "dp": layout.dp,
        "tp": layout.tp,
        "pp": layout.pp,
        "schedule": layout.schedule,
    }
    if layout.virtual_stages > 1:
        options["virtual-stages"] = layout.virtual_stages
    words = [word for name, value in options.items() for word in (f"--{name}", str(value))]
    return ["-m", "course_lib.demos", "three_d", *words]


def _is_small_gpt(job: Job) -> bool:
    """Whether the demos have this model: they train on text of their own."""
    layers, hidden, heads = job.shape.layers, job.shape.hidden, job.shape.heads
    return job.shape == TransformerShape(
        layers=layers,
        hidden=hidden,
        heads=heads,
        ffn=4 * hidden,
        vocab=VOCAB,
        context=job.sequence,
    )


def _is_plain(job: Job) -> bool:
    """Whether the layout and the recipe are those that the demo has."""
    layout, recipe = job.layout, job.recipe
    spread = layout.cp == layout.ep == 1 and not layout.zero_stage and not layout.sequence_parallel
    even = layout.group is None and layout.stage_layers is None
    fp32 = recipe.parameters == recipe.gradients == "fp32" and recipe.compute is None
    trained = recipe.recompute == "none" and recipe.optimizer == "adamw" and not recipe.dropout
    return spread and even and fp32 and trained and layout.schedule in _SCHEDULES
