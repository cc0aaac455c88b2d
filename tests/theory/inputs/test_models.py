"""Parameter counts against published totals and a torch module on the meta device."""

import dataclasses

import pytest
import reference_modules
import torch

from course_lib.scratch.gpt import GPT
from course_lib.theory.inputs.models import MODELS, model
from course_lib.theory.inputs.parameter_count import ParameterCount, sum_counts
from course_lib.theory.inputs.shape import LatentAttention, TransformerShape


@pytest.mark.parametrize(
    ("name", "total"),
    [
        # config.json of the published weights, counted with transformers on the meta device.
        ("gpt2-124m", 124_439_808),
        ("gpt2-774m", 774_030_080),
        ("gpt2-1.5b", 1_557_611_200),
        ("gpt3-175b", 174_604_259_328),
        ("llama2-7b", 6_738_415_616),
        ("llama2-70b", 68_976_648_192),
        ("mixtral-8x7b", 46_702_792_704),
    ],
)
def test_published_totals(name, total):
    assert model(name).parameters().total == total


@pytest.mark.parametrize("name", ["gpt2-124m", "gpt2-355m", "gpt2-1.5b"])
def test_counts_equal_those_of_a_torch_module(name):
    shape = MODELS[name]
    with torch.device("meta"):
        module = GPT(shape.layers, shape.hidden, shape.heads, shape.vocab, shape.context)
    count = shape.parameters()
    assert count.total == sum(p.numel() for p in module.parameters())
    assert count.attention == sum(
        p.numel() for block in module.blocks for p in block.attention.parameters()
    )
    assert count.mlp == sum(p.numel() for block in module.blocks for p in block.mlp.parameters())


def numel(modules):
    return sum(p.numel() for module in modules for p in module.parameters())


def test_llama_3_equals_a_torch_module():
    shape = MODELS["llama3-8b"]
    with torch.device("meta"):
        module = reference_modules.llama(32, 4096, 32, 8, 128, 14336, 128256)
    count = shape.parameters()
    assert count.total == numel([module])
    assert count.attention == numel(layer.attention for layer in module.layers)
    assert count.mlp == numel(layer.mlp for layer in module.layers)
    assert (count.embedding, count.head) == (numel([module.embedding]), numel([module.head]))


def test_mixtral_equals_a_torch_module():
    with torch.device("meta"):
        module = reference_modules.mixtral(32, 4096, 32, 8, 14336, 32000, experts=8, top_k=2)
    count = MODELS["mixtral-8x7b"].parameters()
    assert count.total == numel([module])
    assert count.router == numel(layer.mlp.router for layer in module.layers)
    assert count.experts == numel(e for layer in module.layers for e in layer.mlp.experts)
    assert count.chosen_experts == numel(e for la in module.layers for e in la.mlp.experts[:2])
    assert count.active == count.total - numel(
        e for la in module.layers for e in la.mlp.experts[2:]
    )


def test_deepseek_v3_equals_a_torch_module():
    with torch.device("meta"):
        module = reference_modules.deepseek(
            61, 3, 7168, 128, 18432, 2048, 129280, 256, 8, 1, latent=(1536, 512, 128, 64, 128)
        )
    mixtures = [layer.mlp for layer in module.layers[3:]]
    count = MODELS["deepseek-v3"].parameters()
    assert count.total == numel([module]) == 671_026_404_352
    assert count.mlp == numel(layer.mlp for layer in module.layers[:3])
    assert count.experts == numel(mixture.experts for mixture in mixtures)
    assert count.shared_experts == numel(mixture.shared for mixture in mixtures)
    assert count.active == count.total - numel(m.experts[8:] for m in mixtures)
    norms = [part for part in module.modules() if isinstance(part, torch.nn.RMSNorm)]
    assert count.norms == numel(norms)


def test_queries_need_not_pass_a_latent():
    # As in DeepSeek-V2-Lite: arXiv:2405.04434, appendix B.
    latent = (None, 8, 4, 2, 6)
    module = reference_modules.deepseek(3, 1, 16, 4, 40, 12, 50, 6, 2, 2, latent)
    shape = dataclasses.replace(DEEPSEEK, mla=LatentAttention(*latent))
    assert shape.parameters().total == numel([module])


def test_layers_embedding_and_head_sum_to_the_model():
    for shape in (*MODELS.values(), SMALL, DEEPSEEK):
        layers = [shape.layer_parameters(layer) for layer in range(shape.layers)]
        parts = [shape.embedding_parameters(), *layers, shape.head_parameters()]
        assert sum_counts(parts) == shape.parameters()
        assert sum(count for _, count in shape.layer_kinds()) == shape.layers


def test_totals_are_sums_of_leaves():
    count = ParameterCount(*range(1, 11))
    assert count.total == 55
    assert count.experts == count.chosen_experts + count.idle_experts
    assert count.active == count.total - count.idle_experts
    assert count.without_embedding == count.total - count.embedding - count.positions
    assert count.times(3).total == (count + count + count).total == 165


def test_kv_width_follows_head_dim():
    wide = dataclasses.replace(SMALL, head_dim=5, kv_heads=2)
    assert (wide.head_width, wide.value_width, wide.kv_width) == (5, 5, 10)
    assert (DEEPSEEK.head_width, DEEPSEEK.value_width) == (6, 5)


SMALL = TransformerShape(layers=2, hidden=8, heads=4, ffn=32, vocab=50, context=16)
DEEPSEEK = TransformerShape(
    layers=3,
    hidden=16,
    heads=4,
    ffn=40,
    vocab=50,
    context=16,
    mlp="swiglu",
    norm="rmsnorm",
    biases=False,
    learned_positions=False,
    tied_embeddings=False,
    experts=6,
    top_k=2,
    shared_experts=2,
    expert_ffn=12,
    dense_layers=1,
    mla=LatentAttention(10, 8, 4, 2, 5),
)


@pytest.mark.parametrize(
    "change",
    [
        {"layers": 3},
        {"hidden": 16},
        {"kv_heads": 2},
        {"ffn": 33},
        {"vocab": 51},
        {"context": 17},
        {"mlp": "swiglu"},
        {"norm": "rmsnorm"},
        {"biases": False},
        {"learned_positions": False},
        {"tied_embeddings": False},
        {"head_dim": 3},
        {"experts": 4, "top_k": 1},
        {"mla": LatentAttention(4, 4, 2, 2, 2)},
    ],
)
def test_each_size_changes_the_count(change):
    changed = dataclasses.replace(SMALL, **change)
    assert changed.parameters().total != SMALL.parameters().total


@pytest.mark.parametrize(
    "change",
    [
        {"experts": 7},
        {"top_k": 3},
        {"shared_experts": 0},
        {"expert_ffn": 13},
        {"dense_layers": 2},
        {"ffn": 41},
        *(
            {"mla": dataclasses.replace(DEEPSEEK.mla, **{leaf.name: 7})}
            for leaf in dataclasses.fields(LatentAttention)
        ),
    ],
)
def test_each_size_of_a_mixture_changes_the_count(change):
    changed = dataclasses.replace(DEEPSEEK, **change).parameters()
    assert (changed.total, changed.active) != (
        DEEPSEEK.parameters().total,
        DEEPSEEK.parameters().active,
    )


def test_heads_change_the_count_under_grouped_query_attention():
    two, four = (
        TransformerShape(2, 8, heads, 32, 50, 16, kv_heads=2).parameters().total for heads in (2, 4)
    )
    assert two != four


def test_explain_of_a_mixture_names_its_leaves_and_the_active_parameters():
    text = DEEPSEEK.parameters().explain()
    for word in ("chosen_experts", "idle_experts", "shared_experts", "router", "active"):
        assert word in text
        assert word not in SMALL.parameters().explain()


def test_explain_has_every_leaf_and_the_total():
    text = SMALL.parameters().explain()
    for word in ("embedding", "attention", "mlp", "norms", "head", "total"):
        assert word in text


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"heads": 3}, "hidden 8 is not divisible by heads 3"),
        ({"kv_heads": 3}, "heads 4 is not divisible by kv_heads 3"),
        ({"layers": 0}, "layers must be at least 1"),
        ({"vocab": 2.5}, "vocab must be a whole number"),
        ({"mlp": "swigloo"}, "did you mean 'swiglu'"),
        ({"norm": "layer norm"}, "did you mean 'layernorm'"),
        ({"biases": 1}, "biases must be True or False"),
        ({"head_dim": 0}, "head_dim must be at least 1"),
        ({"top_k": 2}, "top_k 2 is used only with experts, got experts 0: set experts, or top_k=0"),
        ({"dense_layers": 1}, "dense_layers 1 is used only with experts"),
        ({"expert_ffn": 8}, "set experts, or expert_ffn=0"),
        ({"experts": 4}, "top_k must be at least 1"),
        ({"experts": 4, "top_k": 5}, "top_k 5 is above experts = 4: take at most 4"),
        ({"experts": 4, "top_k": 1, "dense_layers": 2}, "dense_layers 2 is above layers - 1 = 1"),
        ({"experts": 4, "top_k": 1, "expert_ffn": 8}, "ffn 32 is used by no layer"),
        ({"experts": -1}, "experts must be at least 0"),
        ({"mla": (1, 2, 3, 4, 5)}, "mla must be a LatentAttention or None"),
        ({"mla": LatentAttention(4, 4, 2, 2, 2), "head_dim": 2}, "leave both at None"),
        ({"mla": LatentAttention(4, 4, 2, 2, 2), "kv_heads": 2}, "leave both at None"),
    ],
)
def test_bad_shapes_are_explained(change, message):
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(SMALL, **change)


def test_an_unknown_model_gets_the_nearest_name():
    with pytest.raises(ValueError, match="did you mean 'llama2-70b'"):
        model("llama-2-70b")


def test_bad_latents_and_layers_are_explained():
    with pytest.raises(ValueError, match="kv_rank must be at least 1"):
        LatentAttention(None, 0, 1, 1, 1)
    with pytest.raises(ValueError, match="q_rank must be at least 1"):
        LatentAttention(0, 1, 1, 1, 1)
    with pytest.raises(ValueError, match="layer 2 is above layers - 1 = 1"):
        SMALL.layer_parameters(2)
    with pytest.raises(ValueError, match="sequence 17 is longer than the 16 positions"):
        SMALL.check_sequence(17)


def test_narayanan_s_names_are_the_rounded_counts():
    # arXiv:2104.04473, table 1 prints billions with one digit after the point.
    for name, shape in MODELS.items():
        if name.startswith("gpt-"):
            printed = float(name.removeprefix("gpt-").removesuffix("b"))
            assert round(shape.parameters().total / 1e9, 1) == printed


def test_presets_cover_the_published_families():
    for name in ("gpt2-355m", "llama1-65b", "llama3.1-405b", "deepseek-v3", "mt-nlg-530b"):
        assert name in MODELS
    assert MODELS["llama3.1-8b"].context == 131072
