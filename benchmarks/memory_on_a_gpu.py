"""Predicted and measured peak memory of one GPU that trains GPT-2: `python benchmarks/memory_on_a_gpu.py`.

Needs a CUDA GPU. Gradients are kept between steps (`set_to_none=False`), as the formula assumes.
"""

import argparse
import json
import subprocess

import torch

from course_lib.scratch.accumulation import loss_sum
from course_lib.scratch.gpt import GPT
from course_lib.scratch.ledger import ledger
from course_lib.scratch.master_copy import MasterAdamW
from course_lib.theory.memory import RECIPES, training_memory
from course_lib.theory.models import MODELS


def train(name: str, recipe_name: str, micro_batch: int) -> dict[str, float]:
    """Three updates on random tokens; returns predicted and measured bytes."""
    shape, recipe = MODELS[name], RECIPES[recipe_name]
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    with torch.device("cuda"):
        model = GPT(shape.layers, shape.hidden, shape.heads, shape.vocab, shape.context)
        inputs, labels = torch.randint(0, shape.vocab, (2, micro_batch, shape.context)).unbind()
    if recipe.parameters == "bf16":
        model.bfloat16()
        optimizer = MasterAdamW(model.parameters(), lr=1e-4)
    else:
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    for _ in range(3):
        model.zero_grad(set_to_none=False)
        loss_sum(model(inputs).float(), labels).backward()
        optimizer.step()
    predicted = training_memory(shape, recipe, micro_batch, overhead_bytes=0)
    states = sum(list(ledger(model, optimizer).values())[:3])
    return {
        "model": name,
        "recipe": recipe_name,
        "micro_batch": micro_batch,
        "states_predicted": predicted.model_states_bytes,
        "states_measured": states,
        "peak_predicted": predicted.total_bytes,
        "peak_measured": torch.cuda.max_memory_allocated() - before,
        "reserved": torch.cuda.memory_reserved(),
    }


def used_outside_torch() -> int:
    """Bytes that the driver shows as used and torch's allocator did not reserve."""
    free, total = torch.cuda.mem_get_info()
    return total - free - torch.cuda.memory_reserved()


def main() -> None:
    """Print one line per case and the machine's overhead."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    as_json = parser.parse_args().json
    if not torch.cuda.is_available():
        raise SystemExit("this benchmark needs a CUDA GPU: torch.cuda.is_available() is False")
    cases = [
        (name, recipe, micro_batch)
        for name in ("gpt2-124m", "gpt2-1.5b")
        for recipe in ("fp32-16", "mixed-16")
        for micro_batch in (1, 8)
    ]
    rows = [train(*case) for case in cases]
    if as_json:
        print(json.dumps(rows))
        return
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}")
    query = ["nvidia-smi", "--query-gpu=memory.total", "--format=csv,noheader"]
    print("memory.total by nvidia-smi:", subprocess.run(query, capture_output=True, text=True).stdout)
    for row in rows:
        print(
            f"{row['model']:<10} {row['recipe']:<9} micro-batch {row['micro_batch']}: "
            f"states {row['states_measured'] / row['states_predicted']:.4f}, "
            f"peak {row['peak_measured'] / 1e9:6.2f} GB measured / "
            f"{row['peak_predicted'] / 1e9:6.2f} GB predicted = "
            f"{row['peak_measured'] / row['peak_predicted']:.3f}"
        )
    print(f"overhead outside torch's allocator: {used_outside_torch() / 2**30:.2f} GiB")


if __name__ == "__main__":
    main()
