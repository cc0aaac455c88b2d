"""Shapes and constants of published transformers; shape.py defines `TransformerShape`."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from course_lib.checked import check_public
from course_lib.theory.inputs.shape import LatentAttention, TransformerShape
from course_lib.validation import choice


def model(name: str) -> TransformerShape:
    """The preset model `name`. Raises ValueError with the nearest name for an unknown one."""
    choice("model", name, MODELS)
    return MODELS[name]


def _gpt(
    layers: int, hidden: int, heads: int, context: int = 1024, vocab: int = 50257
) -> TransformerShape:
    return TransformerShape(layers, hidden, heads, 4 * hidden, vocab, context)


def _megatron(layers: int, hidden: int, heads: int) -> TransformerShape:
    """Narayanan et al. 2021: GPT with the vocabulary padded to 51,200 and 2048 positions."""
    return _gpt(layers, hidden, heads, context=2048, vocab=51200)


_LLAMA_LIKE: Mapping[str, Any] = {
    "mlp": "swiglu",
    "norm": "rmsnorm",
    "biases": False,
    "learned_positions": False,
    "tied_embeddings": False,
}


def _llama(
    layers: int, hidden: int, heads: int, ffn: int, *, vocab: int = 32000, **more: Any
) -> TransformerShape:
    return TransformerShape(layers, hidden, heads, ffn, vocab, **_LLAMA_LIKE, **more)


_V3_LATENTS = LatentAttention(q_rank=1536, kv_rank=512, nope_dim=128, rope_dim=64, value_dim=128)

MODELS = {
    # Radford et al. 2019, table 2, with the sizes of the published config.json files: the paper's
    # own totals (117M, 345M, 762M, 1542M) are too small.
    "gpt2-124m": _gpt(12, 768, 12),
    "gpt2-355m": _gpt(24, 1024, 16),
    "gpt2-774m": _gpt(36, 1280, 20),
    "gpt2-1.5b": _gpt(48, 1600, 25),
    # Brown et al. 2020, arXiv:2005.14165, table 2.1.
    "gpt3-175b": _gpt(96, 12288, 96, context=2048),
    # Touvron et al. 2023, arXiv:2302.13971, table 2, and config.json of the released weights.
    "llama1-7b": _llama(32, 4096, 32, 11008, context=2048),
    "llama1-13b": _llama(40, 5120, 40, 13824, context=2048),
    "llama1-33b": _llama(60, 6656, 52, 17920, context=2048),
    "llama1-65b": _llama(80, 8192, 64, 22016, context=2048),
    # Touvron et al. 2023, arXiv:2307.09288, table 1, and config.json.
    "llama2-7b": _llama(32, 4096, 32, 11008, context=4096),
    "llama2-13b": _llama(40, 5120, 40, 13824, context=4096),
    "llama2-70b": _llama(80, 8192, 64, 28672, context=4096, kv_heads=8),
    # Grattafiori et al. 2024, arXiv:2407.21783, table 3.
    "llama3-8b": _llama(32, 4096, 32, 14336, context=8192, kv_heads=8, vocab=128256),
    "llama3-70b": _llama(80, 8192, 64, 28672, context=8192, kv_heads=8, vocab=128256),
    "llama3-405b": _llama(126, 16384, 128, 53248, context=8192, kv_heads=8, vocab=128256),
    # The same shapes with a longer context: config.json of the released weights.
    "llama3.1-8b": _llama(32, 4096, 32, 14336, context=131072, kv_heads=8, vocab=128256),
    "llama3.1-70b": _llama(80, 8192, 64, 28672, context=131072, kv_heads=8, vocab=128256),
    "llama3.1-405b": _llama(126, 16384, 128, 53248, context=131072, kv_heads=8, vocab=128256),
    # Jiang et al. 2024, arXiv:2401.04088, table 1.
    "mixtral-8x7b": _llama(32, 4096, 32, 14336, context=32768, kv_heads=8, experts=8, top_k=2),
    # DeepSeek-AI 2024, arXiv:2412.19437, section 4.2, and config.json. Not counted: the
    # multi-token prediction module, and the router's balancing bias, which no gradient trains.
    "deepseek-v3": _llama(
        61,
        7168,
        128,
        18432,
        context=163840,
        vocab=129280,
        experts=256,
        top_k=8,
        shared_experts=1,
        expert_ffn=2048,
        dense_layers=3,
        mla=_V3_LATENTS,
    ),
    # Smith et al. 2022, arXiv:2201.11990, section 2.2.
    "mt-nlg-530b": _megatron(105, 20480, 128),
    # Narayanan et al. 2021, arXiv:2104.04473, table 1.
    "gpt-1.7b": _megatron(24, 2304, 24),
    "gpt-3.6b": _megatron(30, 3072, 32),
    "gpt-7.5b": _megatron(36, 4096, 32),
    "gpt-18.4b": _megatron(40, 6144, 48),
    "gpt-39.1b": _megatron(48, 8192, 64),
    "gpt-76.1b": _megatron(60, 10240, 80),
    "gpt-145.6b": _megatron(80, 12288, 96),
    "gpt-310.1b": _megatron(96, 16384, 128),
    "gpt-529.6b": _megatron(105, 20480, 128),
    "gpt-1008b": _megatron(128, 25600, 160),
}


# --- Constants that a model needs besides its sizes; they add no parameters ---

# The keys are those of Hugging Face configurations, with the values of the released weights. If a
# program does not set them, an engine uses its own defaults, which make it another model.

Constants = Mapping[str, Any]

KEYS = (
    *("model_type", "rope_theta", "rope_scaling", "partial_rotary_factor"),
    *("rms_norm_eps", "layer_norm_epsilon", "layer_norm_eps"),
    *("scoring_func", "norm_topk_prob", "n_group", "topk_group", "routed_scaling_factor"),
    *("topk_method", "router_aux_loss_coef", "aux_loss_alpha", "seq_aux"),
)
# Model types fully described by their sizes and KEYS. Others scale embeddings, leave out rotary
# positions, clip, … : see their modeling_*.py in transformers.
FULLY_DESCRIBED = {
    *("llama", "mistral", "mixtral", "qwen2", "qwen2_moe", "qwen3", "qwen3_moe"),
    *("deepseek_v2", "deepseek_v3", "kimi_k2", "gpt2"),
}

_GPT = {"layer_norm_epsilon": 1e-5}
_LLAMA = {"rope_theta": 10_000, "rms_norm_eps": 1e-5}
_LLAMA3 = {**_LLAMA, "rope_theta": 500_000}
_LLAMA31 = {
    **_LLAMA3,
    "rope_scaling": {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    },
}
_DEEPSEEK_V3 = {
    "rope_theta": 10_000,
    "rms_norm_eps": 1e-6,
    "rope_scaling": {
        "type": "yarn",
        "factor": 40,
        "beta_fast": 32,
        "beta_slow": 1,
        "mscale": 1.0,
        "mscale_all_dim": 1.0,
        "original_max_position_embeddings": 4096,
    },
    "scoring_func": "sigmoid",
    "norm_topk_prob": True,
    "n_group": 8,
    "topk_group": 4,
    "routed_scaling_factor": 2.5,
    "topk_method": "noaux_tc",
    # arXiv:2412.19437, section 4.2: alpha of the loss over a sequence.
    "seq_aux": True,
    "aux_loss_alpha": 1e-4,
}
_BY_PREFIX: Mapping[str, Constants] = {  # the first matching prefix wins
    "gpt": _GPT,
    "mt-nlg": _GPT,
    "llama1-65b": _LLAMA,
    "llama1": {**_LLAMA, "rms_norm_eps": 1e-6},
    "llama2": _LLAMA,
    "llama3.1": _LLAMA31,
    "llama3": _LLAMA3,
    "mixtral": {**_LLAMA, "rope_theta": 1_000_000, "router_aux_loss_coef": 0.02},
    "deepseek-v3": _DEEPSEEK_V3,
}
CONSTANTS: Mapping[str, Constants] = {
    name: next(values for prefix, values in _BY_PREFIX.items() if name.startswith(prefix))
    for name in MODELS
}


def of_shape(shape: TransformerShape) -> Constants:
    """Constants of the preset with this shape; empty if there is none."""
    return next((CONSTANTS[name] for name, preset in MODELS.items() if preset == shape), {})


def of_configuration(values: Mapping[str, Any]) -> Constants:
    """The constants (KEYS) among the entries of a configuration.

    Newer versions of transformers keep the settings of rotary positions in `rope_parameters`.
    """
    rotary = values.get("rope_parameters")
    if isinstance(rotary, dict):
        values = {**rotary, **values}
        if rotary.get("rope_type", "default") != "default":
            values["rope_scaling"] = rotary
    return {key: values[key] for key in KEYS if values.get(key) is not None}


def stretching(constants: Constants) -> tuple[Mapping[str, Any], str]:
    """Settings and method of rotary scaling for longer sequences; the method is "" for none."""
    scaling = constants.get("rope_scaling") or {}
    return scaling, scaling.get("rope_type", scaling.get("type", ""))


def untold(constants: Constants, methods: Sequence[str] = ()) -> Iterator[str]:
    """Warnings about features missing from a program that supports rotary scaling `methods`."""
    if not constants:
        yield "no preset has this model: rotary base, norm epsilon and router are the defaults here"
    family, method = constants.get("model_type", "llama"), stretching(constants)[1]
    if family not in FULLY_DESCRIBED:
        yield f"{family} computes more than is written here: compare its modeling_{family}.py"
    if method not in ("", *methods):
        yield f"rotary positions are not stretched here, as by {method}: only for long sequences"


check_public(globals())
