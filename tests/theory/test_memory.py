"""Memory by consumer, against published numbers; tests/scratch compares with real tensors."""

import dataclasses
import json
from pathlib import Path

import pytest

from course_lib.theory import memory, units
from course_lib.theory.memory import RECIPES, Recipe, training_memory
from course_lib.theory.models import MODELS

PUBLISHED = json.loads((Path(__file__).parent / "published_numbers.json").read_text())
UNSHARDED = [case for case in PUBLISHED if case["category"] == "states"]


@pytest.mark.parametrize("case", UNSHARDED, ids=[case["id"] for case in UNSHARDED])
def test_published_model_states(case):
    states = memory.model_states(int(case["inputs"]["params"]), Recipe(**case["recipe"]))
    predicted = getattr(states, case["leaf"])
    assert predicted == pytest.approx(case["expected"], rel=case["tolerance"])


def test_conventions_have_the_bytes_in_their_names():
    for name, recipe in RECIPES.items():
        assert recipe.bytes_per_parameter == int(name.rsplit("-", 1)[1])


def test_gpt2_xl_does_not_fit_a_24_gb_card():
    # Hugging Face blog, pytorch-fsdp.md, table 2: out of memory with 23.65 GiB usable.
    bill = training_memory(MODELS["gpt2-1.5b"], RECIPES["fp32-16"], micro_batch=1)
    assert bill.model_states_bytes == 24_921_779_200
    assert bill.total_bytes > 23.65 * units.GIB


def test_layer_formula_is_korthikanti_s():
    # s·b·h·(34 + 5·a·s/h), arXiv:2205.05198 equation 1, for GPT-3 175B.
    shape, s, b = MODELS["gpt3-175b"], 2048, 1
    recipe = Recipe(attention="standard", dropout=True)
    expected = s * b * shape.hidden * (34 + 5 * shape.heads * s / shape.hidden)
    assert memory.layer_activation_bytes(shape, recipe, b, s) == expected


def test_selective_and_full_recomputation_are_korthikanti_s():
    shape, s, b = MODELS["gpt3-175b"], 2048, 4
    kept = {
        recompute: memory.layer_activation_bytes(
            shape, Recipe(attention="standard", dropout=True, recompute=recompute), b, s
        )
        for recompute in ("selective", "full")
    }
    assert kept == {"selective": 34 * s * b * shape.hidden, "full": 2 * s * b * shape.hidden}


def test_head_formula_is_korthikanti_s():
    # 4·s·b·h·(1 + v/h) and s·b·h of dropout mask, arXiv:2205.05198 section 4.3.
    shape, s, b = MODELS["gpt3-175b"], 2048, 1
    h, v = shape.hidden, shape.vocab
    kept = memory.head_activation_bytes(shape, Recipe(dropout=True), b, s)
    assert kept == 4 * s * b * h * (1 + v / h) + s * b * h


def test_consumers_sum_to_the_total():
    bill = training_memory(MODELS["llama2-7b"], RECIPES["accumulate-20"], micro_batch=3)
    assert len(bill.consumers) == 7
    assert sum(bill.consumers.values()) == bill.total_bytes
    assert f"{units.gb(bill.total_bytes):.2f} GB" in bill.explain("GB")
    assert f"{units.gib(bill.total_bytes):.2f} GiB" in bill.explain("GiB")


def test_model_states_do_not_depend_on_the_batch():
    one, eight = (training_memory(MODELS["gpt2-124m"], Recipe(), b) for b in (1, 8))
    assert one.model_states_bytes == eight.model_states_bytes
    assert eight.activations_bytes == 8 * one.activations_bytes


@pytest.mark.parametrize(
    "change",
    [
        {"parameters": "fp16", "master_copy": False},
        {"gradients": "fp32"},
        {"optimizer": "momentum"},
        {"master_copy": False},
        {"gradient_buffer": True},
        {"attention": "standard"},
        {"recompute": "full"},
        {"dropout": True},
    ],
)
def test_each_part_of_a_recipe_changes_the_bill(change):
    changed = dataclasses.replace(Recipe(), **change)
    bills = [training_memory(MODELS["gpt2-124m"], r, 1).total_bytes for r in (Recipe(), changed)]
    assert bills[0] != bills[1]


def test_selective_recomputation_matters_under_standard_attention():
    standard = Recipe(attention="standard")
    selective = dataclasses.replace(standard, recompute="selective")
    bills = [training_memory(MODELS["gpt2-124m"], r, 1) for r in (standard, selective)]
    assert bills[0].activations_bytes > bills[1].activations_bytes


@pytest.mark.parametrize(
    "change",
    [{"micro_batch": 2}, {"sequence": 512}, {"overhead_bytes": 0}],
)
def test_each_argument_changes_the_bill(change):
    base = {"micro_batch": 1, "sequence": 1024}
    bills = [
        training_memory(MODELS["gpt2-124m"], Recipe(), **arguments).total_bytes
        for arguments in (base, {**base, **change})
    ]
    assert bills[0] != bills[1]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"parameters": "bf8"}, "did you mean 'bf16'"),
        ({"optimizer": "adam"}, "did you mean 'adamw'"),
        ({"parameters": "fp32"}, "set master_copy=False"),
        ({"gradients": "fp32", "gradient_buffer": True}, "set gradient_buffer=False"),
        ({"attention": "flesh"}, "did you mean 'flash'"),
        ({"recompute": "some"}, "recompute 'some' is not one of"),
        ({"dropout": 0.1}, "dropout must be True or False"),
    ],
)
def test_bad_recipes_are_explained(change, message):
    with pytest.raises(ValueError, match=message):
        Recipe(**change)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"micro_batch": 0}, "micro_batch must be at least 1"),
        ({"micro_batch": 1.5}, "micro_batch must be a whole number"),
        ({"micro_batch": 1, "sequence": 0}, "sequence must be at least 1"),
        ({"micro_batch": 1, "sequence": 2048}, "longer than the 1024 positions"),
        ({"micro_batch": 1, "overhead_bytes": -1}, "overhead_bytes must be at least 0"),
        ({"micro_batch": 1, "overhead_bytes": float("nan")}, "overhead_bytes must be finite"),
    ],
)
def test_bad_batches_are_explained(arguments, message):
    with pytest.raises(ValueError, match=message):
        training_memory(MODELS["gpt2-124m"], Recipe(), **arguments)


def test_model_states_refuses_half_a_parameter():
    with pytest.raises(ValueError, match="parameters must be a whole number"):
        memory.model_states(7e9, Recipe())
