"""Reads a Hugging Face config.json, as published with the weights, into a TransformerShape.

model_types.py defines what the entries of each `model_type` mean.
"""

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from course_lib.checked import check_public
from course_lib.theory.inputs.model_types import MODEL_TYPES, all_keys, json_repr, nearest_type
from course_lib.theory.inputs.models import Constants, of_configuration
from course_lib.theory.inputs.shape import TransformerShape
from course_lib.validation import told

MOST_BYTES = 10**7  # file size; the longest published ones, which list every matrix, have 1 MB
FILE_NAME = "config.json"
_LAYERS = ("num_hidden_layers", "n_layer")  # one of them is in every configuration
_ENCODER = r"\b(is_encoder_decoder|encoder|encoder_layers|decoder_layers|num_decoder_layers)\b"
_NO_ATTENTION = "mamba|ssm|state_size|linear_num|linear_conv|lru_width"


@dataclass(frozen=True)
class Configuration:
    """A parsed configuration; `not_counted` describes features that the shape leaves out.

    `constants`: hyperparameters and functions that affect no size.
    """

    model_type: str
    shape: TransformerShape
    not_counted: tuple[str, ...] = ()
    constants: Constants = field(default_factory=dict)


def configuration(values: Mapping[str, Any]) -> Configuration:
    """Parse the entries of a config.json; for a multimodal model, its text part.

    Raises a one-sentence ValueError with the key and its value for a `model_type` that is not in
    MODEL_TYPES (naming the nearest one that is), a missing or invalid key, an encoder-decoder, and
    packed quantised weights. Only fp8, in which DeepSeek-V3 was trained, is accepted, since it
    stores each weight as a separate number.
    """
    text = values.get("text_config")
    inner: Mapping[str, Any] = text if isinstance(text, dict) else values
    try:
        encoder = values.get("is_encoder_decoder") or inner.get("is_encoder_decoder")
        model_type = _supported_type({**inner, "is_encoder_decoder": encoder})
        shape = MODEL_TYPES[model_type].shape(inner)
    except ValueError as error:
        raise error if inner is values else ValueError(f"text_config: {error}") from error
    left_out = _left_out(values, inner, shape.context)
    return Configuration(model_type, shape, left_out, of_configuration(inner))


def _supported_type(values: Mapping[str, Any]) -> str:
    """The `model_type`. Raises ValueError with a remedy for one that is not supported."""
    if "model_type" not in values:
        if not any(name in values for name in _LAYERS):
            raise ValueError(
                f"neither {' nor '.join(_LAYERS)} is there: give the model's own {FILE_NAME}, not "
                "another file of its folder"
            )
        raise ValueError(
            f"model_type is missing: add it, as in the model's own {FILE_NAME}, such as "
            f'"model_type": "{nearest_type(values)}"'
        )
    model_type, keys = values["model_type"], all_keys(values)
    why = ""
    if re.search(_ENCODER, keys):
        why = ", since it has an encoder beside its decoder"
    elif isinstance(model_type, str) and model_type in MODEL_TYPES:
        return model_type
    elif "head" not in keys or re.search(_NO_ATTENTION, keys):
        why = ", since it has layers without attention"
    raise ValueError(
        f"model_type {json_repr(model_type)} is not supported{why}: correct the name, or count it "
        f"as the nearest that is, {nearest_type(values)!r}, with these sizes in place of a "
        f"preset's; supported are {', '.join(MODEL_TYPES)}"
    )


def _left_out(values: Mapping[str, Any], inner: Mapping[str, Any], context: int) -> tuple[str, ...]:
    """Descriptions of the features of a configuration that a shape cannot express."""
    parts = [
        f"{name}: only the text model is counted"
        for name in ("vision_config", "audio_config")
        if values.get(name) and inner is not values
    ]
    modules = inner.get("num_nextn_predict_layers")
    if modules:
        parts.append(f"num_nextn_predict_layers {told(modules)}: multi-token prediction")
    window = inner.get("sliding_window")
    slides = isinstance(window, int) and 0 < window < context
    if slides and inner.get("use_sliding_window") is not False:
        parts.append(f"sliding_window {window}: attention is counted over whole sequences")
    method = _quantised(values) or _quantised(inner)
    if method:
        parts.append(f"quantization_config {method}: weights have the recipe's bytes")
    return tuple(parts)


def _quantised(values: Mapping[str, Any]) -> str:
    """Quantisation method of the published weights, or "". Raises ValueError for packed weights."""
    described = values.get("quantization_config")
    if not described:
        return ""
    method = described.get("quant_method", described) if isinstance(described, dict) else described
    if method != "fp8":
        raise ValueError(
            f"quantization_config {told(method)} packs several weights into one number, which is "
            "not how a model is trained: take the configuration of the model before quantization"
        )
    return "fp8"


def read_configuration(path: str | os.PathLike[str]) -> Configuration:
    """Read and parse a configuration file, or the config.json in a folder.

    Raises a one-sentence ValueError that starts with the path for a file that cannot be read, is
    not a JSON object or has more than MOST_BYTES.
    """
    if not isinstance(path, str | os.PathLike):
        raise TypeError(f"path must be text or a Path, got {told(path)}: give a file or a folder")
    file_path = Path(path)
    try:
        if file_path.is_dir():
            file_path /= FILE_NAME
        return configuration(_entries(file_path))
    except OSError as error:
        words = f"{error.strerror}: give a file that can be read"
        raise ValueError(f"{told(str(file_path))}: {words}") from error
    except ValueError as error:
        raise ValueError(f"{told(str(file_path))}: {error}") from error


def _entries(file_path: Path) -> dict[str, Any]:
    """The JSON object in a regular file of at most MOST_BYTES; a device could be endless."""
    if not file_path.is_file():
        raise ValueError(
            f"there is no such file: download the model's {FILE_NAME} from its page at "
            "huggingface.co, and give its path or its folder's"
        )
    with file_path.open("rb") as file:
        content = file.read(MOST_BYTES + 1)
    if len(content) > MOST_BYTES:
        raise ValueError(
            f"more than {MOST_BYTES:,} bytes are no configuration: give the model's {FILE_NAME}, "
            "not its weights or its tokenizer"
        )
    try:
        entries = json.loads(content.decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"this is not JSON: give the model's {FILE_NAME}") from error
    if not isinstance(entries, dict):
        raise ValueError(
            f"the JSON is a {type(entries).__name__} and not an object of keys: give the model's "
            f"{FILE_NAME}"
        )
    return entries


check_public(globals())
