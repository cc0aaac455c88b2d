"""How each `model_type` of Hugging Face transformers names its sizes, and what its code fixes.

Keys and defaults are those of the configuration classes of transformers 5.23.0
(models/*/configuration_*.py); what no key states follows its modules (models/*/modeling_*.py). The
tests compare parameter counts with those of the modules that transformers builds.
"""

import difflib
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from course_lib.checked import check_public
from course_lib.theory.inputs.shape import LatentAttention, TransformerShape
from course_lib.validation import divisible, told

_REQUIRED = object()


@dataclass(frozen=True)
class _Key:
    """One entry of a configuration: an integer of at least `least`, or a flag if `default` is one.

    Without a `default` the entry is required. `nullable`: null is allowed, and read as None.
    `or_name`: the name in newer versions of transformers.
    """

    name: str
    default: Any = _REQUIRED
    nullable: bool = False
    or_name: str = ""
    least: int = 1

    def name_in(self, values: Mapping[str, Any]) -> str:
        """The name under which `values` has the entry: `name` or `or_name`."""
        return self.or_name if self.name not in values and self.or_name in values else self.name

    def __call__(self, values: Mapping[str, Any]) -> Any:
        """The entry of `values`, or the default. Raises ValueError if missing or invalid."""
        name = self.name_in(values)
        if name not in values:
            if self.default is _REQUIRED:
                raise ValueError(f"{name} is missing: add it, as in the model's own config.json")
            return self.default
        value = values[name]
        if value is None and (self.nullable or self.default is None):
            return None
        if isinstance(self.default, bool):
            valid, wanted = isinstance(value, bool), "true or false"
        else:
            valid = type(value) is int and value >= self.least
            wanted = f"a whole number from {self.least}"
        if not valid:
            raise ValueError(
                f"{name} must be {wanted}, got {json_repr(value)}: give that of the model's own "
                "config.json"
            )
        return value


def json_repr(value: object) -> str:
    """`value` as JSON spells it, shortened for an error message."""
    return {"None": "null", "True": "true", "False": "false"}.get(repr(value)) or told(value)


# How a field is set: by a key, another function of the whole configuration, or a constant.
_Rule = Callable[[Mapping[str, Any]], Any] | str | int | bool | None


@dataclass(frozen=True)
class ModelType:
    """Rules for the fields of TransformerShape, and `only`: keys that must have a fixed value.

    Any other value of such a key means weight matrices that a TransformerShape cannot express.
    """

    fields: Mapping[str, _Rule]
    only: Mapping[str, Any] = field(default_factory=dict)

    def shape(self, values: Mapping[str, Any]) -> TransformerShape:
        """The shape of a configuration. Raises ValueError for bad keys and inconsistent sizes."""
        for name, expected in self.only.items():
            if values.get(name, expected) != expected:
                raise ValueError(
                    f"{name} {json_repr(values[name])} means other matrices than can be counted "
                    f"here: only {json.dumps(expected)} is read"
                )
        sizes: dict[str, Any] = {}
        names: dict[str, str] = {}
        for field_name, rule in self.fields.items():
            read = _Read(values)
            sizes[field_name] = rule(read) if callable(rule) else rule
            names[field_name] = read.last or field_name
        if sizes.get("attention_biases") == ("all" if sizes["biases"] else "none"):
            sizes["attention_biases"] = None  # states the default explicitly
        if sizes.get("expert_ffn") and not sizes.get("dense_layers"):
            sizes["ffn"] = sizes["expert_ffn"]  # no layer uses the dense width
        try:
            return TransformerShape(**sizes)
        except ValueError as error:
            raise ValueError(_renamed(str(error), names, values)) from error


class _Read(dict[str, Any]):
    """A configuration that records the name of the entry accessed last."""

    last = ""

    def __contains__(self, name: object) -> bool:
        self.last = str(name) or self.last
        return super().__contains__(name)

    def get(self, name: str, default: Any = None) -> Any:
        """The entry `name`, or `default`."""
        self.last = name
        return super().get(name, default)


def _renamed(sentence: str, names: Mapping[str, str], values: Mapping[str, Any]) -> str:
    """An error message of TransformerShape with field names replaced by configuration keys."""
    mentioned = dict.fromkeys(re.findall(rf"\b({'|'.join(names)})\b", sentence))
    absent = [names[name] for name in mentioned if names[name] not in values]
    renamed = re.sub(r"\w+", lambda word: names.get(word[0], word[0]), sentence)
    return renamed + "".join(f" ({name} is not there, and has its default)" for name in absent)


def all_keys(values: Mapping[str, Any]) -> str:
    """All keys with a truthy entry, including those of nested objects, joined by spaces."""
    return " ".join(
        f"{key} {all_keys(value)}" if isinstance(value, dict) else str(key)
        for key, value in values.items()
        if value
    )


def nearest_type(values: Mapping[str, Any]) -> str:
    """The model type in MODEL_TYPES most similar to a configuration of an unsupported type.

    Compares what the keys reveal about the layers (None: unknown), then how many of the type's keys
    are present, then the names.
    """
    keys = all_keys(values)
    rms = True if "rms" in keys else False if "layer_norm" in keys else None
    acts = [str(values[key]) for key in ("hidden_act", "activation_function") if key in values]
    gated = rms or (acts[0] in ("silu", "swiglu") if acts else None)
    turned = rms or re.search("rope|rotary|alibi", keys)
    learned = False if turned else None if rms is None else True
    called = str(values.get("model_type")).casefold()[:100]
    mixture, latent = "expert" in keys, "kv_lora_rank" in keys

    def likeness(name: str) -> tuple[float, ...]:
        rules = MODEL_TYPES[name].fields
        has_learned = bool(rules.get("learned_positions", True))
        unlike = [
            gated not in (None, rules.get("mlp") == "swiglu"),
            rms not in (None, rules.get("norm") == "rmsnorm"),
            learned not in (None, has_learned),
        ]
        read = [rule for rule in rules.values() if isinstance(rule, _Key)]
        present = [key.name_in(values) in values for key in read]
        alike = difflib.SequenceMatcher(None, called, name).ratio()
        return (
            mixture == ("experts" in rules),
            latent == ("mla" in rules),
            -sum(unlike),
            sum(present),
            alike if alike > 0.5 else 0,
        )

    return max(MODEL_TYPES, key=likeness)


def _biased(key: _Key, places: str = "all") -> Callable[[Mapping[str, Any]], str]:
    """A rule for attention_biases: `places` if the flag `key` is set, else "none"."""
    return lambda values: places if key(values) else "none"


def _first_dense(values: Mapping[str, Any]) -> int:
    """The number of dense layers, mlp_only_layers. Raises ValueError unless they come first."""
    listed = values.get("mlp_only_layers") or []
    if not isinstance(listed, list) or listed != list(range(len(listed))):
        raise ValueError(
            f"mlp_only_layers {told(listed)} are not the first layers: only models whose dense "
            "layers come first can be counted here"
        )
    return len(listed)


def _shared_of_qwen2_moe(values: Mapping[str, Any]) -> int:
    """The width of Qwen2-MoE's single shared expert, in units of a routed expert's width."""
    name, by_name = "shared_expert_intermediate_size", "moe_intermediate_size"
    shared, width = _Key(name, 5632, least=0)(values), _Key(by_name, 1408)(values)
    divisible(name, shared, by_name, width)
    return int(shared // width)


def _latents(values: Mapping[str, Any]) -> LatentAttention:
    """Latent attention of DeepSeek-V2 and V3, which have the same defaults."""
    return LatentAttention(
        q_rank=_Key("q_lora_rank", 1536, nullable=True)(values),
        kv_rank=_Key("kv_lora_rank", 512)(values),
        nope_dim=_Key("qk_nope_head_dim", 128)(values),
        rope_dim=_Key("qk_rope_head_dim", 64)(values),
        value_dim=_Key("v_head_dim", 128)(values),
    )


def _four_times(name: str, of: str) -> Callable[[Mapping[str, Any]], int]:
    """A rule that reads the entry `name`, by default four times the entry `of`."""
    return lambda values: _Key(name, None)(values) or 4 * int(_Key(of)(values))


def _falcon_kv_heads(values: Mapping[str, Any]) -> int | None:
    """Falcon's key-value heads: one (multi-query), unless a newer model states a number."""
    grouped = _Key("new_decoder_architecture", default=False)(values)
    if _Key("multi_query", default=True)(values) and not grouped:
        return 1
    return _Key("num_kv_heads", None)(values)  # type: ignore[no-any-return]


def _falcon_norms(values: Mapping[str, Any]) -> int:
    """Falcon's norms per layer: 1 for parallel attention and MLP; newer models default to 2."""
    if _Key("new_decoder_architecture", default=False)(values):
        return _Key("num_ln_in_parallel_attn", None)(values) or 2
    return 1 if _Key("parallel_attn", default=True)(values) else 2


_SIZES: dict[str, _Rule] = {
    "layers": _Key("num_hidden_layers"),
    "hidden": _Key("hidden_size"),
    "heads": _Key("num_attention_heads"),
    "ffn": _Key("intermediate_size"),
    "vocab": _Key("vocab_size"),
    "context": _Key("max_position_embeddings"),
    "learned_positions": False,
}
_HEAD_DIM = _Key("head_dim", None)


def _kv_heads(default: int | None) -> _Key:
    return _Key("num_key_value_heads", default, nullable=True)


def _tied(default: bool) -> _Key:
    return _Key("tie_word_embeddings", default)


_LLAMA = _SIZES | {
    "kv_heads": _kv_heads(None),
    "head_dim": _HEAD_DIM,
    "mlp": "swiglu",
    "norm": "rmsnorm",
    "biases": _Key("mlp_bias", default=False),
    "attention_biases": _biased(_Key("attention_bias", default=False)),
    "tied_embeddings": _tied(default=False),
}
_PLAIN = _LLAMA | {"biases": False, "attention_biases": "none"}
_MISTRAL = _PLAIN | {"kv_heads": _kv_heads(8)}
_QWEN2 = _PLAIN | {"kv_heads": _kv_heads(32), "attention_biases": "qkv"}
_QWEN3 = _LLAMA | {
    "kv_heads": _kv_heads(32),
    "head_dim": _Key("head_dim", 128, nullable=True),
    "biases": False,
    "qk_norm": "head",
}
_QWEN_MIXTURE: dict[str, _Rule] = {
    "top_k": _Key("num_experts_per_tok"),
    "expert_ffn": _Key("moe_intermediate_size"),
    "dense_layers": _first_dense,
}
_GEMMA = _LLAMA | {
    "kv_heads": _kv_heads(16),
    "head_dim": _Key("head_dim", 256),
    "biases": False,
    "tied_embeddings": _tied(default=True),
}
_GEMMA2 = _GEMMA | {"kv_heads": _kv_heads(4), "layer_norms": 4}
_OLMO = _LLAMA | {"biases": False, "norm": "plain"}
_OLMO2 = _OLMO | {"norm": "rmsnorm", "qk_norm": "all"}
_DEEPSEEK = _PLAIN | {
    "kv_heads": None,
    "head_dim": None,
    "attention_biases": None,
    "experts": _Key("n_routed_experts"),
    "top_k": _Key("num_experts_per_tok"),
    "shared_experts": lambda values: _Key("n_shared_experts", None, least=0)(values) or 0,
    "expert_ffn": _Key("moe_intermediate_size"),
    "dense_layers": _Key("first_k_dense_replace", 0, least=0),
    "mla": _latents,
}
_DEEPSEEK_ONLY = {"moe_layer_freq": 1, "attention_bias": False, "mlp_bias": False}
_MOE_ONLY = {"decoder_sparse_step": 1}


def _like(
    family: Mapping[str, _Rule], only: Mapping[str, Any] = MappingProxyType({}), **different: _Rule
) -> ModelType:
    """A model type with the rules of a family, of which `different` overrides some."""
    return ModelType({**family, **different}, only)


MODEL_TYPES: Mapping[str, ModelType] = {
    "llama": _like(_LLAMA),
    "mistral": _like(_MISTRAL),
    "mixtral": _like(
        _MISTRAL, experts=_Key("num_local_experts", 8), top_k=_Key("num_experts_per_tok", 2)
    ),
    "qwen2": _like(_QWEN2),
    "qwen2_moe": _like(
        _QWEN2 | _QWEN_MIXTURE,
        _MOE_ONLY,
        kv_heads=_kv_heads(16),
        attention_biases=_biased(_Key("qkv_bias", default=True), "qkv"),
        experts=_Key("num_experts"),
        shared_experts=_shared_of_qwen2_moe,
        shared_gate=True,
    ),
    "qwen3": _like(_QWEN3),
    "qwen3_moe": _like(
        _QWEN3 | _QWEN_MIXTURE,
        _MOE_ONLY,
        kv_heads=_kv_heads(4),
        head_dim=_HEAD_DIM,
        experts=_Key("num_experts", or_name="num_local_experts"),
    ),
    "deepseek_v2": _like(_DEEPSEEK, _DEEPSEEK_ONLY),
    "deepseek_v3": _like(_DEEPSEEK, _DEEPSEEK_ONLY),
    "kimi_k2": _like(_DEEPSEEK, _DEEPSEEK_ONLY),  # DeepSeek-V3's modules, other sizes
    "gpt2": ModelType(
        {
            "layers": _Key("n_layer"),
            "hidden": _Key("n_embd"),
            "heads": _Key("n_head"),
            "ffn": _four_times("n_inner", "n_embd"),
            "vocab": _Key("vocab_size"),
            "context": _Key("n_positions"),
            "biases": True,
            "tied_embeddings": _tied(default=True),
        },
        only={"add_cross_attention": False},
    ),
    "gpt_neox": _like(
        _SIZES,
        biases=True,
        attention_biases=_biased(_Key("attention_bias", default=True)),
        tied_embeddings=_tied(default=False),
    ),
    "gemma": _like(_GEMMA),
    "gemma2": _like(_GEMMA2),
    # The text_config of a multimodal model states only what differs from the default.
    "gemma3_text": _like(
        _GEMMA2,
        qk_norm="head",
        heads=_Key("num_attention_heads", 8),
        vocab=_Key("vocab_size", 262208),
        context=_Key("max_position_embeddings", 131072),
    ),
    "phi3": _like(_PLAIN),
    "olmo": _like(_OLMO),
    "olmo2": _like(_OLMO2),
    "olmo3": _like(_OLMO2),
    "olmoe": _like(_OLMO2, experts=_Key("num_experts", 64), top_k=_Key("num_experts_per_tok", 8)),
    "granite": _like(_LLAMA),
    "smollm3": _like(_LLAMA, kv_heads=_kv_heads(4), tied_embeddings=_tied(default=True)),
    "starcoder2": _like(
        _SIZES,
        kv_heads=_kv_heads(2),
        biases=_Key("use_bias", default=True),
        tied_embeddings=_tied(default=True),
    ),
    "falcon": _like(
        _SIZES,
        ffn=_four_times("ffn_hidden_size", "hidden_size"),
        context=_Key("max_position_embeddings", 2048),
        kv_heads=_falcon_kv_heads,
        biases=_Key("bias", default=False),
        layer_norms=_falcon_norms,
        tied_embeddings=_tied(default=True),
    ),
}


check_public(globals())
