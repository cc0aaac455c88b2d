"""From the text of options to the theory's inputs; bad text is a ValueError of one sentence."""

import argparse
from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from course_lib.theory.inputs.cluster import Cluster
    from course_lib.theory.inputs.hardware import Accelerator
    from course_lib.theory.inputs.layout import Layout
    from course_lib.theory.inputs.recipe import Recipe
    from course_lib.theory.inputs.shape import TransformerShape

GPU = "H100-SXM"
RECIPE = "mixed-16"
MFU = 0.4

# The planner tries every divisor of these: more than any cluster has, and no long wait for a typo.
MOST_NODES = 10**6
MOST_SEQUENCES = 10**9

COUNTS = ("dp", "tp", "pp", "cp", "ep", "micro_batch", "virtual_stages")


def model(arguments: argparse.Namespace) -> tuple[str, "TransformerShape"]:
    """The name of a preset, small or capital letters, and its shape."""
    from course_lib.theory.inputs.models import MODELS
    from course_lib.theory.inputs.models import model as preset

    if arguments.model is None:
        raise ValueError(f"model is missing: name one of {', '.join(MODELS)}")
    name = _spelled(arguments.model, MODELS)
    return name, preset(name)


def gpu(arguments: argparse.Namespace) -> "Accelerator":
    """The accelerator of --gpu."""
    from course_lib.theory.inputs.hardware import ACCELERATORS, accelerator

    return accelerator(_spelled(arguments.gpu or GPU, ACCELERATORS))


def cluster(arguments: argparse.Namespace) -> "Cluster":
    """The cluster of --gpu, --nodes and --gpus-per-node."""
    from course_lib.theory.inputs.cluster import Cluster

    nodes = count(arguments, "nodes", 1, most=MOST_NODES)
    return Cluster(gpu(arguments), nodes, count(arguments, "gpus_per_node", 8, most=MOST_NODES))


def batch(arguments: argparse.Namespace) -> int:
    """The global batch, in sequences."""
    if arguments.batch is None:
        raise ValueError("batch is missing: add --batch 1024, the sequences of one update")
    return count(arguments, "batch", most=MOST_SEQUENCES)


def recipe(arguments: argparse.Namespace) -> "Recipe":
    """The recipe of --recipe with what the other options change of it."""
    from dataclasses import replace

    from course_lib.theory.inputs.recipe import RECIPES
    from course_lib.validation import choice

    name = _spelled(arguments.recipe or RECIPE, RECIPES)
    choice("recipe", name, RECIPES)
    given = {key: getattr(arguments, key, None) for key in ("attention", "optimizer", "recompute")}
    return replace(RECIPES[name], **{key: value for key, value in given.items() if value})


def layout(arguments: argparse.Namespace) -> "Layout":
    """The layout that is asked for, with enough micro-batches to show the pipeline's peak."""
    from course_lib.theory.inputs.layout import Layout

    schedule = arguments.schedule or "1f1b"
    counts = {name: count(arguments, name, 1) for name in COUNTS}
    # No more micro-batches than this are ever in flight, under any schedule but gpipe.
    filled = counts["pp"] * (2 if schedule in ("interleaved", "dualpipe") else 1)
    return Layout(
        **counts,
        zero_stage=count(arguments, "zero_stage", 0),
        accumulation=count(arguments, "accumulation", filled),
        schedule=schedule,
        sequence_parallel=arguments.sequence_parallel,
    )


def stage(arguments: argparse.Namespace) -> int | None:
    """A pipeline rank, or None for the worst one."""
    text = arguments.stage
    if text in (None, "worst"):
        return None
    if not text.isdecimal():
        raise ValueError(f"stage {text!r} is not a pipeline rank: write worst, or a number from 0")
    return int(text)


def unit(arguments: argparse.Namespace) -> str:
    """GB or GiB."""
    from course_lib.validation import choice

    name = _spelled(arguments.unit or "GB", ("GB", "GiB"))
    choice("unit", name, ("GB", "GiB"))
    return name


def sequence(arguments: argparse.Namespace, shape: "TransformerShape") -> int:
    """Tokens of a sequence; the model's context unless it is given, in digits."""
    text = arguments.sequence
    if text is None:
        return shape.context
    if not text.isdecimal():
        raise ValueError(
            f"sequence {text!r} is not a number of tokens: write all digits, such as 4096 "
            "(4k may mean 4000)"
        )
    return int(text)


def count(
    arguments: argparse.Namespace,
    name: str,
    default: int | None = None,
    least: int = 0,
    most: int = 10**18,
) -> int:
    """A whole number from "8", "4k" or "15T"; `default` if the option is not given."""
    from course_lib.validation import whole

    text = getattr(arguments, name)
    if text is None and default is not None:
        return default
    value = _counted(name, text)
    whole(name, value, least, most)
    return value


def _counted(name: str, text: str) -> int:
    from course_lib.theory.inputs.units import parse_count

    if text.isdecimal():
        return int(text)  # all digits of it, where a float would round
    try:
        if not text[-1:].isalpha():  # 1.5 of something that is counted
            raise ValueError
        return parse_count(text)
    except ValueError:
        raise ValueError(f"{name} {text!r} is not a count: write it like 8, 4k or 15T") from None


def number(arguments: argparse.Namespace, name: str, default: float) -> float:
    """A number; whether it may be negative or infinite is checked where it is used."""
    text = getattr(arguments, name)
    if text is None:
        return default
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"{name} {text!r} is not a number: write it like {default:g}") from None


def mfu(arguments: argparse.Namespace) -> float:
    """Part of the peak that is used, above 0 and at most 1."""
    from course_lib import validation

    value = number(arguments, "mfu", MFU)
    validation.number("mfu", value, above=0)
    if value > 1:
        raise ValueError(f"mfu must be at most 1, got {value:g}: write 0.4 for 40 %")
    return value


def _spelled(name: str, known: Iterable[str]) -> str:
    """The known name that differs from `name` in capital letters only, else `name`."""
    return next((other for other in known if other.casefold() == name.casefold()), name)
