"""Which setting wins where command line, configuration file and code disagree: a table, and trials.

What is in force was tried with accelerate 1.15, DeepSpeed 0.19.8 and torch 2.13 on a CPU; the
functions below repeat it where the packages are installed.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Setting:
    """One disagreement: what each side says, what is in force, and what to do about it."""

    what: str
    tool: str
    outside: str  # the command line, or a configuration file
    code: str
    in_force: str
    advice: str


SETTINGS = (
    Setting(
        "world size",
        "torchrun",
        "--nproc-per-node 2",
        "init_process_group(world_size=4)",
        "the code, and it waits for ranks that never come",
        "read WORLD_SIZE, or leave it out",
    ),
    Setting(
        "world size",
        "accelerate launch",
        "--cpu --num_processes 2",
        "Accelerator()",
        "1 process, and nothing says so",
        "start it by torchrun on a CPU; print num_processes",
    ),
    Setting(
        "precision",
        "accelerate",
        "--mixed_precision no",
        'Accelerator(mixed_precision="bf16")',
        "the code: bf16",
        "name it in one place",
    ),
    Setting(
        "accumulation",
        "accelerate launch",
        "--gradient_accumulation_steps 4",
        "Accelerator()",
        "1: without --use_deepspeed the option is not handed on",
        "set it in the code, or by its variable",
    ),
    Setting(
        "accumulation",
        "accelerate",
        "ACCELERATE_GRADIENT_ACCUMULATION_STEPS=4",
        "Accelerator(gradient_accumulation_steps=2)",
        "the variable: 4",
        "print gradient_accumulation_steps",
    ),
    Setting(
        "accumulation",
        "accelerate",
        "nothing",
        "a loop that calls backward() twice for a step()",
        "the code: each backward() sends; the loss is not divided",
        "use accelerator.accumulate(model)",
    ),
    Setting(
        "clipping",
        "DeepSpeed",
        'no "gradient_clipping" in the file',
        "no clip_grad_norm_",
        "a norm of 1.0 at most",
        'write "gradient_clipping": 0.0 where nothing is to be clipped',
    ),
    Setting(
        "batch",
        "DeepSpeed",
        '"train_batch_size": 32, micro batch 4, accumulation 2, 1 rank',
        "DataLoader(batch_size=4)",
        "neither: it refuses, 32 is not 4 · 2 · 1",
        "give two of the three numbers",
    ),
    Setting(
        "batch",
        "DeepSpeed",
        '"train_micro_batch_size_per_gpu": 4',
        "DataLoader(batch_size=8)",
        "the code: 8 samples are trained, and logs count 4",
        "let deepspeed.initialize(training_data=…) make the loader",
    ),
)


def table() -> str:
    """All disagreements, a block each."""
    lines = []
    for one in SETTINGS:
        lines += [
            f"{one.what}, {one.tool}",
            f"    outside:   {one.outside}",
            f"    code:      {one.code}",
            f"    in force:  {one.in_force}",
            f"    so:        {one.advice}",
        ]
    return "\n".join(lines)


def accelerate_says(outside: dict[str, str], **code: Any) -> Any:
    """accelerate's Accelerator, made with these arguments where its launcher set these variables.

    `accelerate launch --mixed_precision no` sets ACCELERATE_MIXED_PRECISION=no.
    """
    from accelerate import Accelerator
    from accelerate.state import AcceleratorState, GradientState

    with _environment(outside):
        AcceleratorState._reset_state(reset_partial_state=True)
        GradientState._reset_state()
        return Accelerator(cpu=True, **code)


def deepspeed_says(**config: Any) -> Any:
    """DeepSpeed's reading of a configuration, on one rank; AssertionError where it refuses."""
    from deepspeed.runtime.config import DeepSpeedConfig

    return DeepSpeedConfig(config)


@contextmanager
def _environment(changes: dict[str, str]) -> Iterator[None]:
    before = dict(os.environ)
    os.environ.update(changes)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)
