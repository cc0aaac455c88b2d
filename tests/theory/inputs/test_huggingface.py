"""Published configurations: their counts are those of the modules that transformers builds."""

import json
import math
import os
from pathlib import Path

import pytest
from every import every
from probes import Probe, by_name

from course_lib.theory.inputs.huggingface import MOST_BYTES, configuration, read_configuration
from course_lib.theory.inputs.models import MODELS

# Each file names where it is published; of that it has the keys that set sizes.
FOLDER = Path(__file__).with_name("configurations")

# sum(p.numel() for p in model.parameters()), a tied embedding once, of
# AutoModelForCausalLM.from_config under torch.device("meta"): transformers 5.23.0, torch 2.13.0.
PARAMETERS = {
    "DeepSeek-V2-Lite": 15_706_484_224,
    "DeepSeek-V2": 235_741_434_880,
    "DeepSeek-V3": 671_026_404_352,
    "Kimi-K2-Instruct": 1_026_408_209_408,  # as deepseek_v3, whose modules it has
    "Llama-2-70b-hf": 68_976_648_192,
    "Llama-3.1-405B": 405_853_388_800,
    "Llama-3.2-1B": 1_235_814_400,
    "Meta-Llama-3-8B": 8_030_261_248,
    "Mistral-7B-v0.1": 7_241_732_096,
    "Mistral-Nemo-Base-2407": 12_247_782_400,
    "Mixtral-8x7B-v0.1": 46_702_792_704,
    "OLMo-1B-hf": 1_176_764_416,
    "OLMo-2-1124-7B": 7_298_617_344,
    "OLMoE-1B-7B-0924": 6_919_161_856,
    "Olmo-3-1025-7B": 7_298_011_136,
    "Phi-3-mini-4k-instruct": 3_821_079_552,
    "Qwen1.5-MoE-A2.7B": 14_315_784_192,
    "Qwen2-57B-A14B": 57_408_658_944,
    "Qwen2-7B": 7_615_616_512,
    "Qwen2.5-0.5B": 494_032_768,
    "Qwen3-0.6B": 596_049_920,
    "Qwen3-30B-A3B": 30_532_122_624,
    "Qwen3-8B": 8_190_735_360,
    "SmolLM3-3B": 3_075_098_624,
    "falcon-40b": 41_303_293_952,
    "falcon-7b": 6_921_720_704,
    "gemma-2-9b": 9_241_705_984,
    "gemma-2b": 2_506_172_416,
    "gemma-3-1b-pt": 999_885_952,
    "gemma-3-4b-pt": 3_880_263_168,  # of its text_config
    "gemma-7b": 8_537_680_896,
    "gpt-neox-20b": 20_554_567_680,
    "gpt2": 124_439_808,
    "granite-3.1-8b-base": 8_170_835_968,
    "llama-7b": 6_738_415_616,
    "phi-4": 14_659_507_200,
    "starcoder2-7b": 7_173_923_840,
}


def entries(name):
    return json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))


@every(("name", "total"), PARAMETERS.items())
def test_the_parameters_are_those_of_the_modules(name, total):
    assert read_configuration(FOLDER / f"{name}.json").shape.parameters().total == total


def test_every_configuration_is_counted_and_says_where_it_is_published():
    assert {path.stem for path in FOLDER.glob("*.json")} == set(PARAMETERS)
    for name in PARAMETERS:
        source = entries(name)["source"]
        assert source.startswith("https://huggingface.co/")
        assert source.endswith(f"/{name}/blob/main/config.json")


@pytest.mark.engine("transformers")
@every("name", PARAMETERS)
def test_the_parameters_are_those_that_an_installed_transformers_builds(name):
    import torch
    import transformers

    values = entries(name)
    values = values.get("text_config") or values
    ours = {"source", "quantization_config", "model_type"}
    sizes = {key: value for key, value in values.items() if key not in ours}
    model_type = {"kimi_k2": "deepseek_v3"}.get(values["model_type"], values["model_type"])
    with torch.device("meta"):
        config = transformers.AutoConfig.for_model(model_type, **sizes)
        model = transformers.AutoModelForCausalLM.from_config(config)
    assert sum(p.numel() for p in model.parameters()) == PARAMETERS[name]


@every(
    ("file", "preset"),
    [
        ("llama-7b", "llama1-7b"),
        ("Llama-2-70b-hf", "llama2-70b"),
        ("Meta-Llama-3-8B", "llama3-8b"),
        ("Llama-3.1-405B", "llama3.1-405b"),
        ("Mixtral-8x7B-v0.1", "mixtral-8x7b"),
        ("DeepSeek-V3", "deepseek-v3"),
        ("gpt2", "gpt2-124m"),
    ],
)
def test_a_configuration_gives_the_shape_of_the_preset(file, preset):
    assert read_configuration(FOLDER / f"{file}.json").shape == MODELS[preset]


def test_what_the_shape_leaves_out_is_said():
    def left_out(name):
        return read_configuration(FOLDER / f"{name}.json").not_counted

    assert left_out("Meta-Llama-3-8B") == left_out("Qwen2-7B") == ()
    assert left_out("Mistral-7B-v0.1") == (
        "sliding_window 4096: attention is counted over whole sequences",
    )
    wide = configuration(entries("Mistral-7B-v0.1") | {"sliding_window": 32768})
    assert wide.not_counted == ()  # as wide as the context
    images, window = left_out("gemma-3-4b-pt")
    assert images == "vision_config: only the text model is counted" and "1024" in window
    prediction, stored = left_out("DeepSeek-V3")
    assert prediction == "num_nextn_predict_layers 1: multi-token prediction"
    assert stored == "quantization_config fp8: weights have the recipe's bytes"


def test_a_folder_is_as_good_as_its_config_json(tmp_path):
    text = (FOLDER / "gpt2.json").read_text(encoding="utf-8")
    (tmp_path / "config.json").write_text(text, encoding="utf-8-sig")  # as Windows editors save
    assert read_configuration(tmp_path).shape == MODELS["gpt2-124m"]
    assert read_configuration(str(tmp_path)).model_type == "gpt2"


JUNK = (None, -1, 0, 1.5, math.nan, 10**30, "x", "9" * 5000, True, [], [1], {}, {"x": 1})


@every("name", PARAMETERS)
def test_nonsense_in_any_key_is_one_sentence_or_harms_nothing(name):
    values = entries(name)
    inner = values.get("text_config") or values
    assert len(inner) >= 4
    for key in [*inner, "sliding_window", "quantization_config", "mlp_only_layers"]:
        for junk in JUNK:
            broken = inner | {key: junk}
            try:
                found = configuration({"text_config": broken} if inner is not values else broken)
                assert found.shape.parameters().total > 0
                assert all("\n" not in part for part in found.not_counted)
            except ValueError as error:
                assert ": " in str(error) and "\n" not in str(error), (key, junk, str(error))


LLAMA = entries("Meta-Llama-3-8B")
UNTYPED = {key: value for key, value in LLAMA.items() if key != "model_type"}
NO_LAYERS = r"neither num_hidden_layers nor n_layer is there: give"


@every(
    ("values", "words"),
    [
        (UNTYPED, r'model_type is missing: add it, .* "llama"'),
        ({"bos_token_id": 1, "transformers_version": "5"}, NO_LAYERS),
        ({"peft_type": "LORA", "r": 8}, NO_LAYERS),
        ({"metadata": {}, "weight_map": {}}, NO_LAYERS),
        ({"dim": 4096, "n_layers": 32, "n_heads": 32, "vocab_size": 128256}, NO_LAYERS),
        (
            LLAMA | {"model_type": "lama"},
            "'lama' is not supported: correct the name, .*, 'llama', with",
        ),
        (
            LLAMA | {"model_type": None},
            "model_type null is not supported: .*; supported are llama, ",
        ),
        (LLAMA | {"model_type": ["llama"]}, r"model_type \['llama'\] is not supported"),
        (
            LLAMA | {"is_encoder_decoder": True},
            "not supported, since it has an encoder beside its decoder",
        ),
        (
            LLAMA | {"quantization_config": {"quant_method": "gptq", "bits": 4}},
            "'gptq' packs several",
        ),
        (
            LLAMA | {"quantization_config": {"load_in_4bit": True}},
            "{'load_in_4bit': True} packs several",
        ),
        (
            LLAMA | {"quantization_config": "awq"},
            "'awq' packs several .*: take the configuration of",
        ),
    ],
)
def test_what_cannot_be_read_is_one_sentence(values, words):
    with pytest.raises(ValueError, match=words) as refused:
        configuration(values)
    assert "\n" not in str(refused.value)


# The keys that tell what the layers are, of a published config.json of each; all have heads.
RMS = {"hidden_act": "silu", "rms_norm_eps": 1e-5, "num_attention_heads": 8}
LN = {"layer_norm_epsilon": 1e-5, "num_attention_heads": 8}


@every(
    ("model_type", "values", "words"),
    [
        ("opt", {"do_layer_norm_before": True, "num_attention_heads": 8}, ": .*, 'gpt2', with"),
        ("bloom", LN | {"n_layer": 70, "n_embed": 14336}, ": .*, 'gpt2', with"),
        ("gptj", LN | {"n_layer": 28, "rotary_dim": 64, "n_head": 16}, ": .*, 'gpt_neox', with"),
        ("gpt_oss", RMS | {"num_local_experts": 32, "num_experts_per_tok": 4}, ": .*, 'mixtral', "),
        ("llama4_text", RMS | {"num_local_experts": 16}, ": .*, 'mixtral', with"),
        ("dbrx", {"n_heads": 48, "ffn_config": {"moe_num_experts": 16}}, ": .*, 'mixtral', with"),
        ("glm4", RMS, ": .*, 'llama', with"),
        ("cohere", RMS | {"rms_norm_eps": 0, "layer_norm_eps": 1e-5}, ": .*, 'olmo', with"),
        ("deepseek_v4", RMS | {"kv_lora_rank": 512, "n_routed_experts": 9}, ": .*, 'deepseek_v2',"),
        ("qwen2_vl", RMS | {"num_key_value_heads": 4}, ": .*, 'qwen2', with"),
        ("bert", LN | {"hidden_act": "gelu"}, ": .*, 'gpt2', with"),
        ("t5", {"is_encoder_decoder": True}, ", since it has an encoder beside its decoder: "),
        ("whisper", {"encoder_layers": 4, "decoder_layers": 4}, ", since it has an encoder beside"),
        ("t5gemma", {"encoder": {"hidden_size": 8}}, ", since it has an encoder beside its decod"),
        ("mamba", {"state_size": 16}, ", since it has layers without attention: .* 'llama'"),
        ("jamba", RMS | {"mamba_d_state": 16}, ", since it has layers without attention: "),
    ],
)
def test_another_family_is_not_supported_and_the_nearest_is_named(model_type, values, words):
    for nested in (False, True):
        inner = {**values, "model_type": model_type}
        with pytest.raises(ValueError, match=f"model_type '{model_type}' is not supported{words}"):
            configuration({"text_config": inner} if nested else inner)


@every(
    ("content", "words"),
    [
        (b"", "this is not JSON: give the model's config.json"),
        (b"{'model_type': 'llama'}", "this is not JSON"),
        (b"\xff\xfe\x00\x01", "this is not JSON"),
        (b"[" * 10**6, "this is not JSON"),
        (b'{"vocab_size": ' + b"9" * 5000 + b"}", "this is not JSON"),
        (b"[1, 2]", "the JSON is a list and not an object of keys"),
        (b'"llama"', "the JSON is a str and not an object of keys"),
        (b"{}", "neither num_hidden_layers nor n_layer is there"),
        (b" " * (MOST_BYTES + 1), "more than 10,000,000 bytes are no configuration"),
    ],
)
def test_what_is_in_a_broken_file_is_one_sentence(content, words, tmp_path):
    path = tmp_path / "broken.json"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=words) as refused:
        read_configuration(path)
    assert str(refused.value).startswith("'") and "broken.json" in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_path_without_a_file_is_one_sentence(tmp_path):
    for path in (tmp_path, tmp_path / "config.json", "no/such/place.json", "x" * 5000, os.devnull):
        with pytest.raises(
            ValueError, match=r": (there is no such file: download|File name too long: give) "
        ):
            read_configuration(path)


PROBES = by_name(
    Probe(configuration, {"values": LLAMA}, {"values": entries("Qwen3-8B")}),
    Probe(read_configuration, {"path": FOLDER / "gpt2.json"}, {"path": FOLDER / "gemma-2b.json"}),
)
RECORDS = {"Configuration": [configuration(LLAMA), configuration(entries("gemma-3-4b-pt"))]}
