"""The course's own program for training a plan."""

from course_lib.theory.inputs.job import Job
from course_lib.theory.inputs.layout import Layout
from course_lib.theory.inputs.recipe import RECIPES
from course_lib.theory.inputs.shape import TransformerShape

VOCAB = 128  # ASCII: the vocabulary of the demos' training text
_SCHEDULES = ("naive", "gpipe", "1f1b", "interleaved")


def program(job: Job) -> list[str]:
    """Arguments for torchrun that run the plan as the demo `three_d`; [] if that is impossible.

    The demo trains a small GPT in fp32 on dp × tp × pp ranks, without ZeRO, and prints its traffic.
    """
    shape, layout = job.shape, job.layout
    names = ("dp", "tp", "pp", "micro_batch", "accumulation", "schedule", "virtual_stages")
    plain = Job(
        TransformerShape(
            layers=shape.layers,
            hidden=shape.hidden,
            heads=shape.heads,
            ffn=4 * shape.hidden,
            vocab=VOCAB,
            context=job.sequence,
        ),
        RECIPES["fp32-16"],
        Layout(**{name: getattr(layout, name) for name in names}),
        job.cluster,
        job.sequence,
    )
    if job != plain or layout.schedule not in _SCHEDULES:
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
