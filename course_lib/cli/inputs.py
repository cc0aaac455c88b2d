"""The options that commands share about the theory's inputs: each is added and read here."""

import argparse
from typing import TYPE_CHECKING

from course_lib.cli.text import MOST_DIGITS, add_text_options, spelled

if TYPE_CHECKING:
    from course_lib.theory.inputs.hardware import Accelerator
    from course_lib.theory.inputs.recipe import Recipe
    from course_lib.theory.inputs.shape import TransformerShape

GPU = "H100-SXM"
RECIPE = "mixed-16"


def add_model(parser: argparse.ArgumentParser) -> None:
    """Add MODEL and --sequence."""
    about = "such as llama3-8b; without it the models are listed"
    parser.add_argument("model", metavar="MODEL", nargs="?", help=about)
    about = "tokens of a sequence (default: the model's context)"
    add_text_options(parser, {"--sequence": about})


def model(arguments: argparse.Namespace) -> tuple[str, "TransformerShape"]:
    """The name of a preset, small or capital letters, and its shape."""
    from course_lib.theory.inputs.models import MODELS
    from course_lib.theory.inputs.models import model as preset

    if arguments.model is None:
        raise ValueError(f"model is missing: name one of {', '.join(MODELS)}")
    name = spelled(arguments.model, MODELS)
    return name, preset(name)


def sequence(arguments: argparse.Namespace, shape: "TransformerShape") -> int:
    """Tokens of a sequence; the model's context unless it is given, in digits."""
    from course_lib.validation import told

    text: str | None = arguments.sequence
    if text is None:
        return shape.context
    if not text.isdecimal() or len(text) > MOST_DIGITS:
        raise ValueError(
            f"sequence {told(text)} is not a number of tokens: write all digits, such as 4096 "
            "(4k may mean 4000)"
        )
    return int(text)


def add_gpu(parser: argparse.ArgumentParser) -> None:
    """Add --gpu."""
    add_text_options(parser, {"--gpu": f"which GPU (default: {GPU})"}, "NAME")


def gpu(arguments: argparse.Namespace) -> "Accelerator":
    """The accelerator of --gpu."""
    from course_lib.theory.inputs.hardware import ACCELERATORS, accelerator

    return accelerator(spelled(arguments.gpu or GPU, ACCELERATORS))


def add_recompute(parser: argparse.ArgumentParser) -> None:
    """Add --recompute, whose text the theory reads."""
    add_text_options(parser, {"--recompute": "none (default), selective or full"}, "NAME")


def add_recipe(parser: argparse.ArgumentParser) -> None:
    """Add --recipe, --optimizer and --attention."""
    options = {
        "--recipe": f"{RECIPE} (default), megatron-18, accumulate-20 or fp32-16: bytes per "
        "parameter",
        "--optimizer": "adamw (default), adamw-8bit, momentum or sgd",
        "--attention": "flash (default) or standard, which stores the scores",
    }
    add_text_options(parser, options, "NAME")


def recipe(arguments: argparse.Namespace) -> "Recipe":
    """The recipe of --recipe with what the other options change of it."""
    from dataclasses import replace

    from course_lib.theory.inputs.recipe import RECIPES
    from course_lib.validation import choice

    name = spelled(arguments.recipe or RECIPE, RECIPES)
    choice("recipe", name, RECIPES)
    given = {key: getattr(arguments, key, None) for key in ("attention", "optimizer", "recompute")}
    return replace(RECIPES[name], **{key: value for key, value in given.items() if value})
