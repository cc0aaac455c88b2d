"""Step time of DDP by hand beside torch's DistributedDataParallel, on the same ranks in turn.

    python benchmarks/ddp_against_torch.py --models small medium --ranks 2 --steps 30

A step is forward, backward with the exchange, and AdamW. Prints the median of each version, and the
median over steps of the ratio of neighbours: the machine's moods fall on both.
"""

import argparse
import statistics
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from course_lib import launch
from course_lib.demos.shared.training import MODELS, Training, mean_loss, own_rows
from course_lib.scratch.ddp import DDP

LIBRARY = "DistributedDataParallel"
VERSIONS = {
    LIBRARY: DistributedDataParallel,
    "  with gradient_as_bucket_view": lambda model: DistributedDataParallel(
        model, gradient_as_bucket_view=True
    ),
    "DDP by hand": DDP,
}
WARM_UP = 3  # steps; DistributedDataParallel forms its buckets in the second


def measured(model: str, steps: int, batch: int, sequence: int) -> dict[str, list[float]]:
    """Seconds of each step by version, on one rank."""
    rank = launch.init()
    training = Training(model, steps + WARM_UP, batch * rank.world, sequence)
    wrapped = {name: wrap(training.build(rank.device)) for name, wrap in VERSIONS.items()}
    optimizers = {
        name: training.optimizer(list(module.parameters())) for name, module in wrapped.items()
    }
    seconds: dict[str, list[float]] = {name: [] for name in VERSIONS}
    for rows in (own_rows(batch, rank) for batch in training.batches(rank.device)):
        for name, module in wrapped.items():
            seconds[name].append(one_step(module, optimizers[name], rows))
    return {name: times[WARM_UP:] for name, times in seconds.items()}


def one_step(module: nn.Module, optimizer: torch.optim.Optimizer, rows: tuple) -> float:
    """Seconds of one step, which all ranks begin together."""
    dist.barrier()
    start = time.perf_counter()
    mean_loss(module, rows).backward()
    optimizer.step()
    optimizer.zero_grad()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter() - start


def main() -> None:
    """Measure each model and print one block for it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="+", default=["small", "medium"], help=", ".join(MODELS))
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--batch", type=int, default=4, help="samples of one rank")
    parser.add_argument("--sequence", type=int, default=64)
    options = parser.parse_args()
    for model in options.models:
        arguments = (model, options.steps, options.batch, options.sequence)
        seconds = launch.run(measured, *arguments, ranks=options.ranks, timeout_s=1800)[0]
        print(f"{model}, {options.ranks} ranks, {options.steps} steps")
        for name, times in seconds.items():
            ratios = [ours / its for ours, its in zip(times, seconds[LIBRARY], strict=True)]
            print(
                f"  {name:<32}{1000 * statistics.median(times):9.1f} ms"
                f"{statistics.median(ratios):8.2f} of {LIBRARY}"
            )


if __name__ == "__main__":
    main()
