"""The demos that are named, on two ranks, one after the other: what torchrun starts."""

import json
import sys

from course_lib import demos, launch
from course_lib.demos.shared.result import render

SMALL = {"model": "2x16x2", "steps": 3, "sequence": 8, "batch": 4}
CASES = {
    "checkpoint": SMALL | {"save_after": 2, "load_ranks": 1},
    "checkpointing": SMALL,
    "collectives": {"times": False, "smallest": 64, "largest": 1024},
    "compile": SMALL,
    "context": SMALL,
    "ddp": {"model": "2x16x2", "steps": 3},
    "experts": SMALL,
    "faults": {},
    "fp8": SMALL,
    "fsdp": SMALL,
    "fsdp_tp": SMALL,
    "local_sgd": SMALL | {"every": 2},
    "largest_batch": {"model": "2x16x2", "sequence": 8, "limit_mb": 1.0},
    "multi_device": SMALL,
    "optimizers": SMALL,
    "overlap": SMALL,
    "parameter_server": SMALL | {"model": "512x2"},
    "pipeline": SMALL | {"micro_batches": 2, "sleep_ms": 1.0},
    "prefetch": {"layers": 2, "numbers": 1000, "forward_ms": 1.0},
    "samples": {"json": True},
    "step_memory": SMALL,
    "three_d": SMALL,
    "tp": SMALL,
    "wrappers": {},
    "yafsdp": SMALL,
    "zero": SMALL | {"stage": "1"},
}
# Four ranks, a folder to write to, and programs that start torchrun themselves.
ELSEWHERE = {"hybrid", "elastic", "launchers", "one_update", "pairwise", "toy"}


def _program(names: list[str]) -> None:
    found = {}
    for name in names:
        demo = demos.load(name)
        result = demo.main(demo.Options(**CASES[name]))
        found[name] = json.loads(render(result, as_json=True))
    if launch.init().rank == 0:
        print(json.dumps(found))


if __name__ == "__main__":
    launch.program(_program, sys.argv[1:])
