"""What a model computes beyond its sizes: no parameter more, and another model without it.

The keys are those of Hugging Face configurations, whose values are those of the released weights.
An engine starts from defaults of its own where a program does not name them.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from course_lib.checked import checked
from course_lib.theory.inputs.models import MODELS
from course_lib.theory.inputs.shape import TransformerShape

Constants = Mapping[str, Any]

KEYS = (
    *("model_type", "rope_theta", "rope_scaling", "partial_rotary_factor"),
    *("rms_norm_eps", "layer_norm_epsilon", "layer_norm_eps"),
    *("scoring_func", "norm_topk_prob", "n_group", "topk_group", "routed_scaling_factor"),
    *("topk_method", "router_aux_loss_coef", "aux_loss_alpha", "seq_aux"),
)
# What these model types compute is said by their sizes and KEYS. Others scale embeddings, leave out
# rotary positions, clip, … : see their modeling_*.py in transformers.
TOLD = {
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
_BY_PREFIX: Mapping[str, Constants] = {  # the first that fits
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
    name: next(its for prefix, its in _BY_PREFIX.items() if name.startswith(prefix))
    for name in MODELS
}


@checked
def of_shape(shape: TransformerShape) -> Constants:
    """Those of the preset with these sizes; nothing where there is none."""
    return next((CONSTANTS[name] for name, its in MODELS.items() if its == shape), {})


@checked
def of_configuration(values: Mapping[str, Any]) -> Constants:
    """Those among the entries of a configuration.

    Newer versions of transformers write all that is about rotary positions as `rope_parameters`.
    """
    rotary = values.get("rope_parameters")
    if isinstance(rotary, dict):
        values = {**rotary, **values}
        if rotary.get("rope_type", "default") != "default":
            values["rope_scaling"] = rotary
    return {key: values[key] for key in KEYS if values.get(key) is not None}


@checked
def stretching(constants: Constants) -> tuple[Mapping[str, Any], str]:
    """How rotary positions are stretched to longer sequences, and by which method: "" for none."""
    scaling = constants.get("rope_scaling") or {}
    return scaling, scaling.get("rope_type", scaling.get("type", ""))


@checked
def untold(constants: Constants, methods: Sequence[str] = ()) -> Iterator[str]:
    """Lines on what a program with these constants may still lack; it knows `methods`."""
    if not constants:
        yield "no preset has this model: rotary base, norm epsilon and router are the defaults here"
    family, method = constants.get("model_type", "llama"), stretching(constants)[1]
    if family not in TOLD:
        yield f"{family} computes more than is written here: compare its modeling_{family}.py"
    if method not in ("", *methods):
        yield f"rotary positions are not stretched here, as by {method}: only for long sequences"
