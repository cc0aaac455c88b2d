"""Megatron-LM's own parser and checks, in a process of their own.

Reads a file with a list of [arguments, variables], and writes to another one the settings for each,
or the words of the refusal. MEGATRON_LM: a folder with `megatron/training`, if not installed.
"""

import json
import os
import sys
import typing
from argparse import ArgumentParser
from pathlib import Path
from types import SimpleNamespace

import torch

sys.path.insert(0, os.environ.get("MEGATRON_LM", ""))
if not hasattr(typing, "override"):  # Megatron-LM of 2026 is written for Python 3.12
    typing.override = lambda method: method
# The parser asks which GPU there is: one like the plan's.
torch.cuda.get_device_capability = lambda *_: (9, 0)
torch.cuda.get_device_properties = lambda *_: SimpleNamespace(major=9, minor=0)

from megatron.core.num_microbatches_calculator import (  # noqa: E402
    ConstantNumMicroBatchesCalculator,
)
from megatron.core.package_info import __version__  # noqa: E402
from megatron.training.arguments import (  # noqa: E402
    core_transformer_config_from_args,
    parse_args,
    validate_args,
)
from megatron.training.theoretical_memory_usage import (  # noqa: E402
    compute_weight_and_optimizer_memory,
)


def fail(self, message):
    """In place of the end of this process."""
    raise ValueError(message)


ArgumentParser.error = fail


def answer(arguments, variables):
    """The settings that can be spelt as JSON, with Megatron's own bytes of the fullest rank."""
    os.environ.pop("CUDA_DEVICE_MAX_CONNECTIONS", None)
    os.environ.update(variables)
    # Fused kernels are in NVIDIA's TransformerEngine, which only machines with GPUs have.
    sys.argv = ["pretrain_gpt.py", *arguments, "--no-rope-fusion"]
    try:
        found = validate_args(parse_args(), {})
        found.padded_vocab_size = found.vocab_size
        weights = compute_weight_and_optimizer_memory(found)
        core_transformer_config_from_args(found)  # where heads and chunks are checked
        batch = (found.global_batch_size, found.micro_batch_size, found.data_parallel_size)
        steps = ConstantNumMicroBatchesCalculator(*batch, False, 0).get()
    except Exception as problem:
        return {"refused": f"{type(problem).__name__}: {problem}"}
    plain = {
        name: value for name, value in vars(found).items() if isinstance(value, int | float | str)
    }
    dtypes = {"params_dtype": str(found.params_dtype)}
    own = {"states_bytes": weights, "micro_batches": steps, "megatron": __version__}
    return plain | dtypes | own


if __name__ == "__main__":
    questions, answers = map(Path, sys.argv[1:])
    found = [answer(*question) for question in json.loads(questions.read_text())]
    answers.write_text(json.dumps(found))
