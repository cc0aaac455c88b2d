"""How long a launch takes, cold and warm, beside torchrun: `python benchmarks/launch_times.py`.

Each round starts the samples demo in all three ways, so that a noisy machine disturbs all alike;
the ratios are what to quote. `cold` is a fresh Python that launches once, as `course demo` does;
`warm` is a launch from a kernel whose server is ready.
"""

import argparse
import statistics
import subprocess
import sys
import time
from collections.abc import Callable

from course_lib import demos, launch

COLD = "from course_lib import demos; demos.run('samples', ranks={ranks}, stream=False)"


def seconds(action: Callable[[], object]) -> float:
    """Wall time of `action()`."""
    start = time.perf_counter()
    action()
    return time.perf_counter() - start


def ways(ranks: int) -> dict[str, Callable[[], object]]:
    """The three ways to start the same program."""
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    torchrun += [f"--nproc-per-node={ranks}", "-m", "course_lib.demos", "samples", "--json"]
    cold = [sys.executable, "-c", COLD.format(ranks=ranks)]
    return {
        "torchrun": lambda: subprocess.run(torchrun, check=True, capture_output=True),
        "cold": lambda: subprocess.run(cold, check=True, capture_output=True),
        "warm": lambda: demos.run("samples", ranks=ranks, stream=False),
    }


def main() -> None:
    """Print medians and ratios for 2 and 4 ranks."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    rounds = parser.parse_args().rounds
    launch.run(int, ranks=2)  # warms the server up
    for ranks in (2, 4):
        times: dict[str, list[float]] = {}
        for _ in range(rounds):
            for name, action in ways(ranks).items():
                times.setdefault(name, []).append(seconds(action))
        medians = {name: statistics.median(values) for name, values in times.items()}
        for name, median in medians.items():
            ratio = median / medians["torchrun"]
            print(f"{ranks} ranks  {name:<9}{median:6.2f} s   {ratio:5.2f} of torchrun")


if __name__ == "__main__":
    main()
