"""Which jobs can be rehearsed: one sentence for each that cannot."""

from course_lib.theory.inputs.job import Job
from course_lib.validation import divisible, told

_MOMENTS = {"adamw": "fp32", "momentum": "fp32", "adamw-bf16": "bf16"}  # the weights' own precision


def check(job: Job) -> None:
    """Raise ValueError unless FSDP2 and tensor parallelism, as used here, can run `job`."""
    _check_shape(job)
    _check_layout(job)
    _check_recipe(job)


def _check_shape(job: Job) -> None:
    shape = job.shape
    if shape.experts:
        raise ValueError(
            f"experts {shape.experts} cannot be rehearsed, since what sends tokens to them is the "
            "model's own code and none of torch's: take a model with experts=0 for all that is no "
            "expert, run `course demo experts`, or count it by `course memory`"
        )
    for name, standard in (("mla", None), ("qk_norm", "none"), ("layer_norms", 2)):
        _only("a model", name, getattr(shape, name), standard)


def _check_layout(job: Job) -> None:
    layout = job.layout
    for name in ("pp", "cp", "ep"):
        _only("a layout", name, getattr(layout, name), 1)
    _only("a layout", "zero_stage", layout.zero_stage, 3)
    divisible("kv_heads", job.shape.kv_heads, "tp", layout.tp)
    vocab = job.shape.vocab
    if (layout.tp - 1) * -(-vocab // layout.tp) >= vocab:
        raise ValueError(
            f"vocab {vocab} leaves the last of tp {layout.tp} ranks without a word, which FSDP2 "
            f"refuses: take a vocab that {layout.tp} divides"
        )


def _check_recipe(job: Job) -> None:
    recipe = job.recipe
    for name, standard in (
        ("master_copy", False),
        ("gradient_buffer", False),
        ("recompute", "none"),
        ("offload", "none"),
        ("gathering", "fsdp"),
    ):
        _only("a recipe", name, getattr(recipe, name), standard)
    if recipe.optimizer == "sgd":
        return
    if recipe.optimizer not in _MOMENTS:
        raise ValueError(
            f"optimizer {recipe.optimizer!r} is not in torch: choose adamw, adamw-bf16, "
            "momentum or sgd"
        )
    precision = _MOMENTS[recipe.optimizer]
    if recipe.parameters != precision:
        raise ValueError(
            f"optimizer {recipe.optimizer!r} has moments in {precision}, and torch's have the "
            f"precision of the weights, {recipe.parameters}: set parameters={precision!r}, or "
            "another optimizer"
        )


def _only(what: str, name: str, value: object, standard: object) -> None:
    if value != standard:
        raise ValueError(
            f"{name} {told(value)} cannot be rehearsed, the rehearsed transformer is a plain one: "
            f"take {what} with {name}={standard!r}"
        )
