"""`course step`."""

import argparse

from course_lib.cli import inputs
from course_lib.cli.options import Answer, add_json_option

ABOUT = "the time of one training step, by what takes it"


def add_options(parser: argparse.ArgumentParser) -> None:
    """A model, how it is trained, how it is spread, and over which GPUs."""
    inputs.add_model(parser)
    inputs.add_recipe(parser)
    inputs.add_recompute(parser)
    inputs.add_layout(parser)
    inputs.add_cluster(parser, nodes="as many as the layout needs")
    add_json_option(parser)


def run(arguments: argparse.Namespace) -> Answer:
    """Seconds on the slowest stage by leaf, with tokens per second and MFU."""
    from course_lib.theory.step.assumptions import OPTIMISTIC
    from course_lib.theory.step.step_time import step_time

    model = inputs.model(arguments)
    job = inputs.job(arguments, model.shape)
    step = step_time(job, inputs.assumptions(arguments, OPTIMISTIC))
    title = (
        f"{model.name}, sequences of {job.sequence:,} tokens, {inputs.words(job.layout)} on "
        f"{job.cluster.accelerator.name}\n{model.size}{model.notes}"
    )
    totals = ("total_s", "tokens_per_s", "tokens_per_s_per_gpu", "mfu", "hfu")
    data = {
        **inputs.data(model, job),
        "gpu": job.cluster.accelerator.name,
        "nodes": job.cluster.nodes,
        "framework": inputs.framework(arguments),
        "leaves": step.leaves(),
        "totals": {name: getattr(step, name) for name in totals},
    }
    return Answer(f"{title}{step.explain()}", data)
