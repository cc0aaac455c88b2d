"""`course plan`."""

import argparse
from dataclasses import asdict
from functools import partial
from itertools import islice
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Any

from course_lib.cli import inputs
from course_lib.cli import options as read
from course_lib.cli.options import Answer, Options, add, add_json_option, given

if TYPE_CHECKING:
    from course_lib.theory.inputs.job import Job
    from course_lib.theory.planner import Plan, PlannedLayout

ABOUT = "rank all layouts of a model on a cluster"
MOST_SEQUENCES = 10**9
WIDTH = 100  # of a line of the answer
# Each is computed in detail, and each that does not fit is retried with other settings.
MOST_TOP, MOST_REJECTED = 10_000, 1000
MOST_ASKED = 1000  # layouts that are searched for the first that an engine can run


def add_options(parser: argparse.ArgumentParser) -> None:
    """A model, a cluster, how it is trained, and how much is shown."""
    inputs.add_model(parser)
    inputs.add_cluster(parser)
    inputs.add_recipe(parser)
    top = "how many layouts, first the fastest of each tp, pp and ep (default: 10)"
    rejected = "how many that do not fit, the closest first (default: 5)"
    options: Options = {
        "recompute": (read.plain, "none, selective or full (default: all are tried)"),
        "margin": (read.number, "part of each GPU's memory that stays free (default: 0.05)"),
        "batch": (
            partial(read.count, most=MOST_SEQUENCES),
            "global batch: sequences of one update",
        ),
        "top": (partial(read.count, least=1, most=MOST_TOP), top),
        "rejected": (partial(read.count, most=MOST_REJECTED), rejected),
    }
    add(parser, options)
    group = parser.add_argument_group("the files of one layout, for the engine that runs it")
    engines = "slurm, trainjob, torchtitan, megatron, deepspeed or accelerate"
    to = "write them into this folder; without it they are printed instead of the table"
    options = {
        "emit": (read.plain, engines),
        "layout": (
            partial(read.count, least=1, most=MOST_TOP),
            "which of the fastest layouts (default: 1)",
        ),
        "to": (read.plain, to),
    }
    add(group, options)
    add_json_option(parser)
    parser.set_defaults(top=10, rejected=5)


def run(arguments: argparse.Namespace) -> Answer:
    """The fastest layouts that fit, the sturdiest, the Pareto front, and why others do not fit."""
    from course_lib.theory.planner import plan
    from course_lib.theory.step.assumptions import CAUTIOUS, OPTIMISTIC

    model, top = inputs.model(arguments), arguments.top
    if arguments.batch is None:
        raise ValueError("batch is missing: add --batch 1024")
    job = inputs.job(arguments, model.shape)
    usual, cautious = (inputs.assumptions(arguments, each) for each in (OPTIMISTIC, CAUTIOUS))
    found = plan(
        model.shape,
        job.recipe,
        job.cluster,
        arguments.batch,
        sequence=job.sequence,
        assumptions=usual,
        only={"recompute": (job.recipe.recompute,)} if arguments.recompute else {},
        **given(arguments, ("margin",)),
    )
    emitted = _emitted(arguments, found, model)
    if emitted and not arguments.json:
        return Answer(_written(arguments, emitted), {})
    unfit = list(islice(found.rejected(), arguments.rejected))
    # If nothing fits, the planner's own table already has the closest one.
    rest = unfit if found.fitting else unfit[1:]
    table = f"{model.name} on {found.explain(top)}"
    both = {"optimistic": found, "cautious": found.under(cautious)}
    notes = model.notes + _habits(arguments)
    text = "\n".join(
        [f"{notes}{table}", *_sturdy(both, top), *_front(found, top), *_unfit(found, rest)]
    )
    data = {**model.data(), **_plan_data(both, top, unfit)} if arguments.json else {}
    if emitted:
        _written(arguments, emitted)
        data["files"] = emitted
    # Exit code 1, "something did not pass", tells a program that nothing fits.
    return Answer(text, data, code=0 if found.fitting else 1)


def _habits(arguments: argparse.Namespace) -> str:
    """A line on how --framework changes a layout, which the planner's layouts do not include."""
    from course_lib.theory.inputs.job import FRAMEWORKS

    name = inputs.framework(arguments)
    habits = ", ".join({**FRAMEWORKS[name].layout, **FRAMEWORKS[name].pipelined}) if name else ""
    return f"of {name} not counted here, but by `course step`: {habits}\n" if habits else ""


def _emitted(arguments: argparse.Namespace, found: "Plan", model: inputs.Model) -> dict[str, str]:
    """{name: text} of the files for --emit; empty without that option."""
    for name in ("layout", "to"):
        if arguments.emit is None and getattr(arguments, name) is not None:
            raise ValueError(f"{name} is about the files of a layout: add --emit slurm")
    if arguments.emit is None:
        return {}
    from course_lib import emitting

    target = read.spelled(arguments.emit, emitting.TARGETS)
    number = arguments.layout or 1
    if number > found.fitting:
        raise ValueError(
            f"layout {number} is not there, {found.fitting:,} of {found.layouts:,} layouts fit: "
            + ("take one of them" if found.fitting else "take more nodes, or --recompute full")
        )
    job = _jobs(found, number)[-1]
    try:
        name = f"{model.name}, layout {number} of its plan,"
        return emitting.files(target, job, name, model.constants)
    except ValueError as error:
        if target not in emitting.TARGETS:
            raise
        first = emitting.first_possible(target, _jobs(found, max(number, MOST_ASKED)))
        if first is None:
            raise
        raise ValueError(f"{error}, such as --layout {first}") from error


def _jobs(found: "Plan", most: int) -> "list[Job]":
    """The Job of each of the `most` fastest layouts."""
    return [found.question.job(each.layout, each.recipe) for each in found.ranked(most)]


def _written(arguments: argparse.Namespace, files: dict[str, str]) -> str:
    """The files' texts, or with --to a line for each file written."""
    from course_lib import emitting

    if arguments.to is None:
        several = len(files) > 1
        titled = (f"==> {name} <==\n{text}" if several else text for name, text in files.items())
        return "\n".join(titled).removesuffix("\n")
    return "\n".join(f"wrote {path}" for path in emitting.write(files, Path(arguments.to)))


def _sturdy(both: dict[str, "Plan"], most: int) -> list[str]:
    """Lines on the robust layouts: those near the top under both sets of assumptions."""
    from course_lib.theory.planner import NEAR_THE_TOP, explain_sturdy, fastest, sturdy

    plans = tuple(both.values())
    found = fastest(plans, 1)
    if not found:
        return []
    losing, best = found[0].regret, sturdy(plans, 1)[0]
    verdict = f"The fastest layout above is within {losing:.1%} of the best under either."
    if losing > NEAR_THE_TOP:
        verdict = (
            f"The fastest layout above loses {losing:.1%} where it does worst; the first one here "
            f"loses {best.regret:.1%}."
        )
    title = (
        "Under either set of assumptions, one line for each tp, pp and ep, the least regret first:"
    )
    return ["", title, explain_sturdy(both, most), verdict]


def _front(found: "Plan", most: int) -> list[str]:
    """Lines on the Pareto front: the fastest layout for each of at most `most` sizes of memory."""
    front = found.pareto()
    if not front:
        return []
    largest, smallest, steps = front[0].memory_bytes, front[-1].memory_bytes, max(1, most - 1)
    sizes = [largest - step * (largest - smallest) // steps for step in range(most)]
    chosen = {next(option for option in front if option.memory_bytes <= size) for size in sizes}
    shown = [option for option in front if option in chosen]
    title = f"Pareto front, none is both faster and smaller ({len(shown)} of {len(front)}):"
    return ["", title, found.table(shown)]


def _unfit(found: "Plan", unfit: list[tuple["PlannedLayout", str]]) -> list[str]:
    """Lines on layouts that do not fit, each with the reason."""
    if not unfit:
        return []
    head, *table = found.table([option for option, _ in unfit]).splitlines()
    reasons = [fill(why, WIDTH, initial_indent="  ", subsequent_indent="  ") for _, why in unfit]
    lines = [line for pair in zip(table, reasons, strict=True) for line in pair]
    return ["", "Do not fit, the closest first:", head, *lines]


def _plan_data(
    both: dict[str, "Plan"], top: int, unfit: list[tuple["PlannedLayout", str]]
) -> dict[str, Any]:
    from course_lib.theory.planner import sturdy

    plans = tuple(both.values())
    found, question = plans[0], plans[0].question
    return {
        "gpu": question.cluster.accelerator.name,
        "nodes": question.cluster.nodes,
        "gpus": question.cluster.world,
        "margin": question.margin,
        "capacity_bytes": found.capacity_bytes,
        "global_batch_sequences": question.global_batch,
        "sequence_tokens": question.sequence,
        "recipe": asdict(question.recipe),
        "layouts": found.layouts,
        "fitting": found.fitting,
        "best": [_option_data(found, option) for option in found.ranked(top)],
        "assumptions": {name: asdict(each.question.assumptions) for name, each in both.items()},
        "sturdy": [
            {
                **one.option.as_dict(),
                "steps_s": dict(zip(both, one.steps_s, strict=True)),
                "regret": one.regret,
            }
            for one in sturdy(plans, top)
        ],
        "pareto": [option.as_dict() for option in found.pareto()],
        "rejected": [{**option.as_dict(), "reason": reason} for option, reason in unfit],
    }


def _option_data(found: "Plan", option: "PlannedLayout") -> dict[str, Any]:
    """The JSON entry of a ranked layout, with the breakdown of its memory and of its step time."""
    step = found.step(option)
    return {
        **option.as_dict(),
        "mfu": step.mfu,
        "as_fast": option.as_fast,
        "memory_leaves": asdict(found.memory(option)),
        "step_leaves": step.leaves(),
    }
