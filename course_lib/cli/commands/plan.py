"""`course plan`."""

import argparse
from dataclasses import asdict
from itertools import islice
from typing import TYPE_CHECKING, Any

from course_lib.cli import inputs
from course_lib.cli.answer import Answer, add_json_option, refusals
from course_lib.cli.text import add_text_options, count

if TYPE_CHECKING:
    from course_lib.theory.inputs.cluster import Cluster
    from course_lib.theory.planner import Plan, PlannedLayout

ABOUT = "rank all layouts of a model on a cluster"
# The planner tries every divisor of these: more than any cluster has, and no long wait for a typo.
MOST_NODES = 10**6
MOST_SEQUENCES = 10**9
# Each is looked at in detail, and each that does not fit is tried with other settings.
MOST_TOP, MOST_REJECTED = 10_000, 1000
_COUNTS = {
    "--nodes": "number of nodes (default: 1)",
    "--gpus-per-node": "GPUs of one node (default: 8)",
    "--batch": "global batch: sequences of one update",
    "--top": "how many of the fastest layouts (default: 10)",
    "--rejected": "how many that do not fit, the closest first (default: 5)",
}


def add_options(parser: argparse.ArgumentParser) -> None:
    """A model, a cluster, how it is trained, and how much is shown."""
    inputs.add_model(parser)
    inputs.add_gpu(parser)
    inputs.add_recipe(parser)
    add_text_options(parser, _COUNTS)
    add_json_option(parser)


def run(arguments: argparse.Namespace) -> int:
    """The fastest layouts that fit, the Pareto front, and why others do not fit."""
    with refusals():
        answer = _answer(arguments)
    return answer.say(arguments.json)


def _answer(arguments: argparse.Namespace) -> Answer:
    from course_lib.theory.planner import plan

    name, shape = inputs.model(arguments)
    batch = count(arguments, "batch", most=MOST_SEQUENCES)
    top = count(arguments, "top", 10, least=1, most=MOST_TOP)
    rejected = count(arguments, "rejected", 5, most=MOST_REJECTED)
    recipe, length = inputs.recipe(arguments), inputs.sequence(arguments, shape)
    found = plan(shape, recipe, _cluster(arguments), batch, sequence=length)
    unfit = list(islice(found.rejected(), rejected))
    # Where nothing fits, the planner's own table names the closest one already.
    rest = unfit if found.fitting else unfit[1:]
    text = "\n".join([f"{name} on {found.explain(top)}", *_front(found, top), *_unfit(rest)])
    data = {"model": name, **_plan_data(found, top, unfit)} if arguments.json else {}
    # 1 is "something did not pass": a program need not read the table to know that nothing fits.
    return Answer(text, data, code=0 if found.fitting else 1)


def _cluster(arguments: argparse.Namespace) -> "Cluster":
    """The cluster of --gpu, --nodes and --gpus-per-node."""
    from course_lib.theory.inputs.cluster import Cluster

    nodes = count(arguments, "nodes", 1, most=MOST_NODES)
    gpus_per_node = count(arguments, "gpus_per_node", 8, most=MOST_NODES)
    return Cluster(inputs.gpu(arguments), nodes, gpus_per_node)


def _front(found: "Plan", most: int) -> list[str]:
    """Lines on the Pareto front: the fastest layout for each of at most `most` sizes of memory."""
    front = found.pareto()
    if not front:
        return []
    largest, smallest, steps = front[0].memory_bytes, front[-1].memory_bytes, max(1, most - 1)
    sizes = [largest - step * (largest - smallest) // steps for step in range(most)]
    chosen = {next(option for option in front if option.memory_bytes <= size) for size in sizes}
    shown = [option.explain() for option in front if option in chosen]
    title = f"Pareto front, none is both faster and smaller ({len(shown)} of {len(front)}):"
    return ["", title, *shown]


def _unfit(unfit: list[tuple["PlannedLayout", str]]) -> list[str]:
    """Lines on layouts that do not fit, and why."""
    if not unfit:
        return []
    lines = [line for option, why in unfit for line in (option.explain(), f"  {why}")]
    return ["", "Do not fit, the closest first:", *lines]


def _plan_data(found: "Plan", top: int, unfit: list[tuple["PlannedLayout", str]]) -> dict[str, Any]:
    question = found.question
    return {
        "gpu": question.cluster.accelerator.name,
        "nodes": question.cluster.nodes,
        "gpus": question.cluster.world,
        "capacity_bytes": found.capacity_bytes,
        "global_batch_sequences": question.global_batch,
        "sequence_tokens": question.sequence,
        "recipe": asdict(question.recipe),
        "layouts": found.layouts,
        "fitting": found.fitting,
        "best": [_option_data(found, option) for option in found.best(top)],
        "pareto": [option.as_dict() for option in found.pareto()],
        "rejected": [{**option.as_dict(), "reason": reason} for option, reason in unfit],
    }


def _option_data(found: "Plan", option: "PlannedLayout") -> dict[str, Any]:
    """One layout of the ranking, with the leaves of its memory and of its step."""
    step = found.step(option)
    return {
        **option.as_dict(),
        "mfu": step.mfu,
        "memory_leaves": asdict(found.memory(option)),
        "step_leaves": step.leaves(),
    }
