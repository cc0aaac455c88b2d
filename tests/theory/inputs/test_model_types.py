"""What the keys of each model type mean: each changes the shape, and a wrong one is named."""

import json
from pathlib import Path

import pytest
from every import every
from probes import Probe, by_name, check

from course_lib.theory.inputs.model_types import (
    MODEL_TYPES,
    ModelType,
    all_keys,
    json_repr,
    nearest_type,
)

FOLDER = Path(__file__).with_name("configurations")


def entries(name):
    values = json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))
    return values.get("text_config") or values


def shape(name, /, without=(), **change):
    """The shape of a published configuration in which some keys are different."""
    values = entries(name) | change
    kept = {key: value for key, value in values.items() if key not in without}
    return MODEL_TYPES[values["model_type"]].shape(kept)


def test_every_model_type_has_a_published_configuration():
    known = {entries(path.stem)["model_type"] for path in FOLDER.glob("*.json")}
    assert known == set(MODEL_TYPES)


@every(
    ("name", "change", "difference"),
    [
        # Parameters by hand: layers × what one more of it is in a layer.
        ("Meta-Llama-3-8B", {"attention_bias": True}, 32 * (4096 + 1024 + 1024 + 4096)),
        ("Meta-Llama-3-8B", {"mlp_bias": True}, 32 * (14336 + 14336 + 4096)),
        ("Meta-Llama-3-8B", {"tie_word_embeddings": True}, -128256 * 4096),
        ("Meta-Llama-3-8B", {"head_dim": 256}, 32 * 2 * (32 + 8) * 128 * 4096),
        ("Meta-Llama-3-8B", {"num_key_value_heads": 4}, -32 * 2 * 4 * 128 * 4096),
        ("Mistral-7B-v0.1", {"num_key_value_heads": None}, 32 * 2 * 24 * 128 * 4096),
        ("Qwen3-8B", {"head_dim": None}, 0),  # 4096 / 32 is the default of 128
        ("Qwen3-8B", {"attention_bias": True}, 36 * (4096 + 1024 + 1024 + 4096)),
        ("Qwen1.5-MoE-A2.7B", {"qkv_bias": False}, -24 * 3 * 2048),
        ("Qwen1.5-MoE-A2.7B", {"num_experts": 61}, 24 * (3 * 2048 * 1408 + 2048)),
        ("Qwen1.5-MoE-A2.7B", {"shared_expert_intermediate_size": 4224}, -24 * 3 * 2048 * 1408),
        ("Qwen3-30B-A3B", {"mlp_only_layers": [0]}, 3 * 2048 * (6144 - 128 * 768) - 2048 * 128),
        ("DeepSeek-V2-Lite", {"n_shared_experts": None}, -26 * 2 * 3 * 2048 * 1408),
        ("DeepSeek-V2-Lite", {"v_head_dim": 129}, 27 * 16 * (512 + 2048)),
        ("DeepSeek-V2", {"q_lora_rank": 1537}, 60 * (5120 + 1 + 128 * 192)),
        ("gpt2", {"n_inner": 3073}, 12 * (2 * 768 + 1)),
        ("gpt2", {"n_positions": 2048}, 1024 * 768),
        ("gpt2", {"tie_word_embeddings": False}, 50257 * 768),
        ("gpt-neox-20b", {"attention_bias": False}, -44 * 4 * 6144),
        ("starcoder2-7b", {"use_bias": False}, -32 * (4608 + 2 * 512 + 4608 + 18432 + 4608)),
        ("falcon-7b", {"bias": True}, 32 * (4544 + 2 * 64 + 4544 + 4 * 4544 + 4544)),
        ("falcon-7b", {"multi_query": False}, 32 * 2 * 70 * 64 * 4544),
        ("falcon-7b", {"parallel_attn": False}, 32 * 2 * 4544),
        ("falcon-7b", {"ffn_hidden_size": 4544}, -32 * 2 * 3 * 4544 * 4544),
        ("falcon-40b", {"num_ln_in_parallel_attn": 1}, -60 * 2 * 8192),
        ("falcon-40b", {"num_kv_heads": 16}, 60 * 2 * 8 * 64 * 8192),
    ],
)
def test_each_key_means_what_it_means_in_transformers(name, change, difference):
    totals = [it.parameters().total for it in (shape(name), shape(name, **change))]
    assert totals[1] - totals[0] == difference


@every(
    ("name", "without", "field", "value"),
    [
        # Defaults of the configuration classes of transformers 5.23.0.
        ("Meta-Llama-3-8B", "num_key_value_heads", "kv_heads", 32),
        ("Mistral-7B-v0.1", "num_key_value_heads", "kv_heads", 8),
        ("Mixtral-8x7B-v0.1", "num_local_experts", "experts", 8),
        ("Mixtral-8x7B-v0.1", "num_experts_per_tok", "top_k", 2),
        ("Qwen3-8B", "head_dim", "head_dim", 128),
        ("Qwen3-30B-A3B", "num_key_value_heads", "kv_heads", 4),
        ("gemma-7b", "head_dim", "head_dim", 256),
        ("gemma-7b", "num_key_value_heads", "kv_heads", 16),
        ("gemma-2-9b", "num_key_value_heads", "kv_heads", 4),
        ("gemma-3-1b-pt", "num_attention_heads", "heads", 8),
        ("gemma-3-1b-pt", "vocab_size", "vocab", 262208),
        ("gemma-3-1b-pt", "max_position_embeddings", "context", 131072),
        ("OLMoE-1B-7B-0924", "num_experts", "experts", 64),
        ("OLMoE-1B-7B-0924", "num_experts_per_tok", "top_k", 8),
        ("OLMo-1B-hf", "tie_word_embeddings", "tied_embeddings", False),
        ("SmolLM3-3B", "tie_word_embeddings", "tied_embeddings", True),
        ("SmolLM3-3B", "num_key_value_heads", "kv_heads", 4),
        ("falcon-7b", "max_position_embeddings", "context", 2048),
        ("starcoder2-7b", "num_key_value_heads", "kv_heads", 2),
        ("starcoder2-7b", "use_bias", "biases", True),
    ],
)
def test_a_key_that_is_not_there_has_the_default_of_its_class(name, without, field, value):
    assert getattr(shape(name, without=[without]), field) == value


def test_newer_files_name_the_experts_of_qwen3_otherwise():
    renamed = shape("Qwen3-30B-A3B", without=["num_experts"], num_local_experts=128)
    assert renamed == shape("Qwen3-30B-A3B")


def test_a_default_that_does_not_fit_is_named_as_one():
    without = ["num_key_value_heads"]
    with pytest.raises(ValueError, match="num_key_value_heads is not there, and has its default"):
        shape("SmolLM3-3B", without=without, num_attention_heads=6, hidden_size=6)


@every("name", MODEL_TYPES)
def test_a_published_configuration_under_another_name_is_nearest_to_its_own_type(name):
    # Kimi has the modules of DeepSeek-V3, OLMo 3 those of OLMo 2: their files tell nothing apart.
    files = [
        path.stem for path in FOLDER.glob("*.json") if entries(path.stem)["model_type"] == name
    ]
    same = {"kimi_k2": {"deepseek_v3"}, "deepseek_v2": {"deepseek_v3"}}
    for file in files:
        near = nearest_type(entries(file) | {"model_type": f"{name}x"})
        assert near in {name} | same.get(name, set()), file


@every(
    ("name", "change", "words"),
    [
        ("Meta-Llama-3-8B", {"hidden_size": None}, "must be a whole number from 1, got null"),
        ("Meta-Llama-3-8B", {"hidden_size": "4096"}, "must be a whole number from 1, got '4096'"),
        ("Meta-Llama-3-8B", {"hidden_size": True}, "must be a whole number from 1, got true"),
        ("Meta-Llama-3-8B", {"hidden_size": 0}, "hidden_size must be a whole number from 1, got 0"),
        ("Meta-Llama-3-8B", {"num_hidden_layers": 10**30}, "num_hidden_layers must be at most"),
        ("Meta-Llama-3-8B", {"num_attention_heads": 33}, "size 4096 is not divisible by num_att"),
        ("Meta-Llama-3-8B", {"attention_bias": "no"}, "attention_bias must be true or false"),
        ("Qwen1.5-MoE-A2.7B", {"decoder_sparse_step": 2}, "decoder_sparse_step 2 means other"),
        ("Qwen1.5-MoE-A2.7B", {"mlp_only_layers": [3]}, "[3] are not the first layers: only"),
        ("Qwen1.5-MoE-A2.7B", {"mlp_only_layers": 3}, "mlp_only_layers 3 are not the first"),
        ("Qwen1.5-MoE-A2.7B", {"shared_expert_intermediate_size": 5000}, "not divisible by moe"),
        ("DeepSeek-V3", {"attention_bias": True}, "only false is read"),
        ("DeepSeek-V3", {"first_k_dense_replace": 61}, "replace 61 is above num_hidden_layers - 1"),
        ("DeepSeek-V3", {"num_experts_per_tok": 500}, "_per_tok 500 is above n_routed_experts ="),
        ("Meta-Llama-3-8B", {"num_key_value_heads": 5}, "by num_key_value_heads 5: take num_att"),
        ("Qwen3-30B-A3B", {"mlp_only_layers": [*range(60)]}, "mlp_only_layers 60 is above num_hid"),
        ("gpt2", {"n_head": 7}, "n_embd 768 is not divisible by n_head 7: take n_embd 770"),
        ("falcon-40b", {"num_kv_heads": 7}, "128 is not divisible by num_kv_heads 7"),
    ],
)
def test_a_wrong_key_is_named_with_its_value(name, change, words):
    with pytest.raises(ValueError) as refused:
        shape(name, **change)
    assert words in str(refused.value) and "\n" not in str(refused.value)


@every("name", ["Meta-Llama-3-8B", "Qwen1.5-MoE-A2.7B", "DeepSeek-V3", "gpt2", "falcon-7b"])
def test_a_missing_size_is_named(name):
    optional = 0
    for key in entries(name):
        try:
            shape(name, without=[key]) if key != "model_type" else None
            optional += 1
        except ValueError as error:
            expected = f"{key} is missing: add it, as in the model's own config.json"
            assert str(error) == expected
    sizes = {"n_layer", "n_embd", "n_head", "vocab_size", "num_hidden_layers", "hidden_size"}
    assert optional <= len(entries(name)) - len(sizes & set(entries(name)))


GPT2 = MODEL_TYPES["gpt2"]
PROBES = by_name(
    Probe(json_repr, {"value": None}, {"value": True}),
    Probe(all_keys, {"values": {"a": 1}}, {"values": {"a": {"b": 1}}}),
    Probe(nearest_type, {"values": entries("gpt2")}, {"values": entries("Qwen3-8B")}),
    Probe(
        ModelType,
        {"fields": GPT2.fields},
        {"fields": {**GPT2.fields, "mlp": "swiglu"}, "only": {"n_layer": 13}},
        see=lambda one: one.shape(entries("gpt2")),
        refuses=True,
    ),
    check(GPT2.shape, {"values": entries("gpt2")}, {"values": entries("gpt2") | {"n_layer": 11.5}}),
)
