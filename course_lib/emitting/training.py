"""The training program exported for DeepSpeed and accelerate, for a Hugging Face model.

It resumes at the newest checkpoint; the tokens of an update depend on its number only.
"""

from collections.abc import Mapping

from course_lib.emitting.head import every
from course_lib.theory.inputs.job import Job

NEEDS = {
    "MODEL": "a folder with the config.json of the model, or its name at huggingface.co",
    "DATA": "mock for a first run; else an .npy file with the numbers of all tokens in one row",
}
OPTIMIZERS = {
    "adamw": "torch.optim.AdamW(weights, lr=RATE, betas=(0.9, 0.95), weight_decay=0.1)",
    "adamw-8bit": "bitsandbytes.optim.AdamW8bit(weights, lr=RATE)",
    "momentum": "torch.optim.SGD(weights, lr=RATE, momentum=0.9)",
    "sgd": "torch.optim.SGD(weights, lr=RATE)",
}
RECOMPUTE = "    model.gradient_checkpointing_enable()\n"

_COMMON = """\
import os
from pathlib import Path

import numpy
import torch
from transformers import AutoConfig, AutoModelForCausalLM

{imports}

SEQUENCE, MICRO_BATCH, ACCUMULATION = {sequence}, {micro_batch}, {accumulation}
PARAMETERS = {parameters}  # of the model that was planned
RATE = 3e-4  # not of the plan
SAVE_EVERY = {every}  # updates: half an hour, as predicted
STEPS = int(os.environ.get("STEPS", "100"))
CHECKPOINTS = Path(os.environ["CHECKPOINTS"])
CONFIG = AutoConfig.from_pretrained(os.environ["MODEL"])
if os.environ["DATA"] == "mock":
    TOKENS = numpy.random.default_rng(0).integers(CONFIG.vocab_size, size=64 * SEQUENCE)
else:
    TOKENS = numpy.load(os.environ["DATA"], mmap_mode="r")


def built():
    return AutoModelForCausalLM.from_config(
        CONFIG, attn_implementation="{attention}", dtype=torch.float32
    )


def check():
    with torch.device("meta"):
        found = sum(weight.numel() for weight in built().parameters())
    if found != PARAMETERS:
        raise SystemExit(f"MODEL has {{found:,}} parameters, the planned model {{PARAMETERS:,}}")


def batches(step, rank, ranks):
    sequences = len(TOKENS) // SEQUENCE
    for micro in range(ACCUMULATION):
        first = ((step * ACCUMULATION + micro) * ranks + rank) * MICRO_BATCH
        starts = [(first + row) % sequences * SEQUENCE for row in range(MICRO_BATCH)]
        rows = [TOKENS[start : start + SEQUENCE].astype("int64") for start in starts]
        yield torch.from_numpy(numpy.stack(rows))


def optimizer_of(weights):
    return {optimizer}


{main}

if __name__ == "__main__":
    main()
"""


def program(job: Job, imports: str, main: str, **more: object) -> str:
    """The program's text; `main` is the engine's template, whose fields are filled from `more`."""
    values = {
        "sequence": job.sequence,
        "micro_batch": job.layout.micro_batch,
        "accumulation": job.layout.accumulation,
        "parameters": f"{job.shape.parameters().total:_}",
        "every": every(job),
        "attention": "sdpa" if job.recipe.attention == "flash" else "eager",
        "optimizer": OPTIMIZERS[job.recipe.optimizer],
    }
    if "bitsandbytes" in OPTIMIZERS[job.recipe.optimizer]:
        imports = f"import bitsandbytes\n{imports}"
    return _COMMON.format(imports=imports, main=main.format(**more), **values)


def program_reasons(job: Job) -> Mapping[str, bool]:
    """Limitations of this program -> whether the job violates them."""
    recipe = job.recipe
    return {
        "its program recomputes whole layers or nothing": (
            recipe.recompute not in ("none", "full") or recipe.recompute_layers is not None
        ),
        f"its program has no optimizer {recipe.optimizer!r}": recipe.optimizer not in OPTIMIZERS,
    }
