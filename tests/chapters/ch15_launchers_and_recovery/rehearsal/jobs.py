"""Jobs to rehearse: a small one to change, and random ones."""

import random
from dataclasses import replace
from typing import Any

from course_lib.theory.inputs.job import Job
from course_lib.theory.inputs.layout import Layout
from course_lib.theory.inputs.recipe import Recipe
from course_lib.theory.inputs.shape import TransformerShape

LLAMA = TransformerShape(
    layers=1,
    hidden=16,
    heads=8,
    ffn=20,
    vocab=21,
    context=12,
    kv_heads=4,
    mlp="swiglu",
    norm="rmsnorm",
    biases=False,
    learned_positions=False,
    tied_embeddings=False,
)
GPT = TransformerShape(layers=2, hidden=16, heads=4, ffn=64, vocab=21, context=12)
# fp32 shards, gathered and computed in bf16, gradients reduced in fp32.
FSDP = Recipe(parameters="fp32", gradients="fp32", compute="bf16", master_copy=False)


def job(shape: TransformerShape = LLAMA, recipe: Recipe = FSDP, **layout: Any) -> Job:
    return Job(shape, recipe, Layout(zero_stage=3, **layout), sequence=8)


def random_job(dice: random.Random) -> tuple[Job, int]:
    """A job of a small model, and one of its ranks."""
    shards, copies = dice.choice([1, 2, 3, 4, 5, 7]), dice.choice([1, 1, 1, 2, 3])
    tp = dice.choice([1, 1, 2, 4])
    layout = Layout(
        dp=shards * copies,
        tp=tp,
        zero_stage=3,
        shard_group=shards,
        reshard=dice.random() < 0.7,
        accumulation=dice.choice([1, 1, 2]),
        reduce=dice.choice([None, "update"]),
        sequence_parallel=tp > 1 and dice.random() < 0.5,
        micro_batch=dice.choice([1, 2]),
        keep_gathered=True,
    )
    return Job(_shape(dice), _recipe(dice), layout, sequence=8), dice.randrange(layout.world)


def _shape(dice: random.Random) -> TransformerShape:
    heads = dice.choice([4, 8])
    return TransformerShape(
        layers=dice.choice([1, 1, 2]),
        hidden=heads * dice.choice([2, 4, 6]),
        heads=heads,
        ffn=dice.choice([12, 20, 32]),
        vocab=dice.choice([16, 19, 21]),
        context=12,
        kv_heads=dice.choice([4, heads]),
        mlp=dice.choice(["gelu", "swiglu"]),
        norm=dice.choice(["layernorm", "rmsnorm", "plain"]),
        biases=dice.random() < 0.5,
        learned_positions=dice.random() < 0.5,
        tied_embeddings=dice.random() < 0.5,
        attention_biases=dice.choice([None, "none", "qkv", "all"]),
    )


def _recipe(dice: random.Random) -> Recipe:
    more: dict[str, Any] = {
        "gradients": dice.choice(["fp32", "bf16"]),
        "compute": dice.choice([None, "bf16", "fp32"]),
    }
    if dice.random() < 0.3:
        names = {"parameters": "bf16", "optimizer": dice.choice(["adamw-bf16", "sgd"])}
        return replace(FSDP, **more, **names)
    return replace(FSDP, **more, optimizer=dice.choice(["adamw", "momentum", "sgd"]))
