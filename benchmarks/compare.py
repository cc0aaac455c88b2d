"""`course compare` on right runs and on bugs that were put in: the verdict, and the first tensor.

    python benchmarks/compare.py --seeds 5

Every run is one update of a small GPT on real ranks, beside one process with the same weights and
samples. A bug counts as found if the verdict is "more than rounding" and the tensor named is the
one in which the bug first shows.
"""

import argparse
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from course_lib import launch
from course_lib.chapters.ch16_cluster_clinic import comparing
from course_lib.chapters.ch16_cluster_clinic.demos import one_update
from course_lib.chapters.ch16_cluster_clinic.demos.one_update import FAULTS

RIGHT = ("tp", "sp", "tp_ddp", "ddp", "fsdp")
PRECISIONS = ("fp32", "bf16")
DROPOUT = 0.1


@dataclass(frozen=True)
class Case:
    """One run to be judged."""

    technique: str
    fault: str
    precision: str
    ranks: int
    seed: int
    model: str
    dropout: float = 0.0

    def options(self, folder: Path) -> dict[str, Any]:
        chosen = {name: value for name, value in vars(self).items() if name != "ranks"}
        return chosen | {"folder": str(folder / self.name)}

    @property
    def name(self) -> str:
        return "-".join(map(str, vars(self).values()))

    @property
    def alone(self) -> "Case":
        """The run of one process beside it."""
        same = (self.seed, self.model, self.dropout)
        return Case("one", "none", self.precision, 1, *same)


def cases(ranks: int, seed: int, model: str) -> Iterator[Case]:
    for precision in PRECISIONS:
        rest = (precision, ranks, seed, model)
        yield from (Case(technique, "none", *rest) for technique in RIGHT)
        yield Case("tp", "none", *rest, DROPOUT)
        for name, fault in FAULTS.items():
            for technique in fault.techniques:
                yield Case(technique, name, *rest, DROPOUT if name == "seed" else 0.0)


def record_all(options: list[dict[str, Any]]) -> None:
    for one in options:
        one_update.main(one_update.Options(**one))


def judge(case: Case, folder: Path) -> str:
    """ "rounding"; "don't know", "found", "elsewhere: …" of a bug; "accused: …" of a right run."""
    compared = comparing.compare(folder / case.alone.name, folder / case.name)
    tensor = compared.diverging
    if tensor is None:
        return "rounding"
    if compared.verdict == "don't know":
        return compared.verdict
    if case.fault == "none":
        return f"accused: {tensor.title}"
    fault = FAULTS[case.fault]
    right = (tensor.kind, tensor.name) == (fault.kind, fault.name)
    return "found" if right else f"elsewhere: {tensor.title}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--ranks", type=int, nargs="*", default=[2, 4])
    parser.add_argument("--model", default="tiny")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    said: dict[tuple[str, str], Counter[str]] = {}
    for seed in range(arguments.seeds):
        with tempfile.TemporaryDirectory() as path:
            folder = Path(path)
            every = [case for n in arguments.ranks for case in cases(n, seed, arguments.model)]
            runs = {case.name: case for case in [*(case.alone for case in every), *every]}
            for ranks in (1, *arguments.ranks):
                mine = [c.options(folder) for c in runs.values() if c.ranks == ranks]
                launch.run(record_all, mine, ranks=ranks, timeout_s=900, stream=False)
            for case in every:
                what = f"right: {case.technique}" if case.fault == "none" else case.fault
                said.setdefault((what, case.precision), Counter())[judge(case, folder)] += 1
        show(said, seed + 1)


def show(said: dict[tuple[str, str], Counter[str]], seeds: int) -> None:
    """The table so far."""
    print(f"\nafter {seeds} seeds\n\n| run | fp32 | bf16 |\n| --- | --- | --- |")
    for what in dict.fromkeys(what for what, _ in said):
        cells = []
        for precision in PRECISIONS:
            counts = said[what, precision].most_common()
            cells.append(", ".join(f"{words} {count}" for words, count in counts))
        print(f"| `{what}` | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
