"""mini-FSDP and YaFSDP against `fully_shard`: `python benchmarks/fsdp_against_torch.py`.

Step time and peak bytes of tensors on 2 ranks, as ratios to torch's. All versions live in one
launch and take turns update by update, so that a noisy machine disturbs all alike.
"""

import argparse
import statistics
import time

from course_lib import launch
from course_lib.chapters.ch09_fsdp.demos.yafsdp import Memory, measure_memory
from course_lib.demos.fsdp import FullyShard, MiniFSDP, Options, Ya

KINDS = (FullyShard, MiniFSDP, Ya)


def measure(options: Options, rounds: int) -> tuple[dict[str, list[float]], list[Memory]]:
    """Seconds of each update of each version, and the memory of each."""
    rank = launch.init()
    trainees = [kind(options, rank) for kind in KINDS]
    batches = options.training().batches(rank.device)
    seconds: dict[str, list[float]] = {trainee.name: [] for trainee in trainees}
    for number in range(rounds):
        # Who is first changes: what the one before left in the caches is shared out.
        for trainee in trainees[number % 3 :] + trainees[: number % 3]:
            start = time.perf_counter()
            trainee.backward(batches[number % len(batches)])
            trainee.update()
            seconds[trainee.name].append(time.perf_counter() - start)
    del trainees
    return seconds, [measure_memory(kind, options, rank) for kind in KINDS]


def main() -> None:
    """Print medians and ratios for each model."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--models", nargs="+", default=["small", "medium"])
    arguments = parser.parse_args()
    for model in arguments.models:
        options = Options(model=model)
        call = (measure, options, arguments.rounds)
        seconds, memory = launch.run(*call, ranks=2, timeout_s=600)[0]
        medians = {name: statistics.median(times[2:]) for name, times in seconds.items()}
        for one in memory:
            time_ratio = medians[one.name] / medians[FullyShard.name]
            peak_ratio = one.peak_bytes / memory[0].peak_bytes
            print(
                f"{model:<7} {one.name:<12}{1000 * medians[one.name]:8.1f} ms {time_ratio:5.2f}   "
                f"peak {one.peak_bytes:>12,} B {peak_ratio:5.2f}   {one.allocations:>5} allocations"
            )


if __name__ == "__main__":
    main()
