"""The job of the demo `toy`: any launcher can start it that tells each rank who it is.

`torchrun --nproc-per-node 2 -m course_lib.demos.toy.job`
"""

import json
import os
import sys

from course_lib import mine
from course_lib.demos.launchers import lifeline
from course_lib.scratch.toy import demo_model_parallel


def main(parts: str = "course") -> None:
    """One rank, from its first line to its last; rank 0 prints what was learned."""
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    local_rank = int(os.environ["LOCAL_RANK"])
    mine.get("setup", parts)(rank, world_size)
    weights = demo_model_parallel(rank, world_size, local_rank)
    mine.get("cleanup", parts)()
    if rank == 0:
        print(json.dumps({"world": world_size, "weights": weights.flatten().tolist()}))


if __name__ == "__main__":
    lifeline.hold()
    main(*sys.argv[1:])
