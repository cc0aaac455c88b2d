"""Tensor parallelism from scratch beside torch's: `python benchmarks/tp_against_torch.py`.

Step time and peak tensor bytes of the versions in the demo tp, and their parts of
`parallelize_module`'s. All versions live in the same ranks and take turns at each update, so that a
noisy machine disturbs all alike: quote the ratios.
"""

import argparse
import statistics
import time

import torch.distributed as dist
from torch import Tensor

from course_lib import launch
from course_lib.demos.shared.text import VOCAB
from course_lib.demos.shared.trainee import Trainee
from course_lib.demos.shared.training import Batch
from course_lib.demos.tp import megatron
from course_lib.demos.tp.program import Megatron, Options, Scratch, Torch
from course_lib.measure.peak import log_memory
from course_lib.scratch.tensor import SequenceParallel, TensorParallel

CASES = [  # model, batch, sequence
    ("tiny", 8, 64),
    ("small", 8, 64),
    ("medium", 4, 128),
]


def measure(options: Options, rounds: int) -> dict[str, tuple[list[float], int]]:
    """By version, the seconds of each update and the peak of live tensor bytes, on this rank."""
    rank, training = launch.init(), options.training()
    region = (SequenceParallel if options.sequence_parallel else TensorParallel)()
    versions: list[Trainee] = [
        Torch(training, rank, options.sequence_parallel),
        Scratch(training, region, rank.device),
    ]
    if megatron.missing(options.sequence_parallel, VOCAB, rank.world) is None:
        versions.append(Megatron(training, region, rank.device))
    batch = training.batches(rank.device)[0]
    for version in versions:
        update(version, batch)  # makes the optimizer's state
    peaks = {version.name: peak(version, batch) for version in versions}
    seconds: dict[str, list[float]] = {version.name: [] for version in versions}
    for number in range(rounds):
        # The first of a round may find the caches warm or cold: each is it in turn.
        turn = number % len(versions)
        for version in versions[turn:] + versions[:turn]:
            dist.barrier()
            start = time.perf_counter()
            update(version, batch)
            seconds[version.name].append(time.perf_counter() - start)
    return {name: (seconds[name], peaks[name]) for name in peaks}


def update(version: Trainee, batch: Batch) -> None:
    """One update."""
    version.backward(batch)
    version.update()


def peak(version: Trainee, batch: Batch) -> int:
    """Most bytes of tensors alive at once in one update: states, gradients, activations."""
    parameters = list(version.model.parameters())
    states = [value for state in version.optimizer.state.values() for value in state.values()]
    with log_memory(before=[_local(t) for t in (*parameters, *states)]) as log:
        update(version, batch)
    return log.peak_bytes


def _local(tensor: Tensor) -> Tensor:
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


def main() -> None:
    """Print medians and ratios for each model, with and without sequence parallelism."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--models", nargs="*", default=[name for name, *_ in CASES])
    arguments = parser.parse_args()
    for model, batch, sequence in CASES:
        for sequence_parallel in (False, True):
            if model not in arguments.models:
                continue
            options = Options(
                model=model, batch=batch, sequence=sequence, sequence_parallel=sequence_parallel
            )
            found = launch.run(
                measure, options, arguments.rounds, ranks=arguments.ranks, timeout_s=600.0
            )[0]
            print(f"{model}, {arguments.ranks} ranks" + ", sequence parallel" * sequence_parallel)
            theirs, most = found[Torch.name]
            for name, (seconds, bytes_) in found.items():
                median, ratio = (
                    statistics.median(seconds),
                    statistics.median(
                        ours / other for ours, other in zip(seconds, theirs, strict=True)
                    ),
                )
                print(
                    f"  {name:<24}{1000 * median:8.1f} ms {ratio:6.2f}"
                    f"{bytes_ / 1e6:10.2f} MB {bytes_ / most:6.2f}"
                )


if __name__ == "__main__":
    main()
