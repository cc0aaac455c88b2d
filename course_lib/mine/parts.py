"""The parts that a learner builds: where each is kept, and where the course has its own."""

from dataclasses import dataclass

_SCRATCH = "course_lib.scratch"


@dataclass(frozen=True)
class Part:
    """One build: `names` are kept in `mine/<file>.py`; the course's own stand in module `home`."""

    file: str
    build: str  # the exercise's id
    home: str
    names: tuple[str, ...]


PARTS = (
    Part(
        "ring", "6.11", f"{_SCRATCH}.collectives.ring", ("ring_reduce_scatter", "ring_all_gather")
    ),
    Part("pipeline", "11.11", f"{_SCRATCH}.pipeline.runtime", ("Pipeline",)),
    Part("experts", "12.10", f"{_SCRATCH}.experts.all_to_all", ("AllToAll", "Dispatcher")),
    Part(
        "ring_attention",
        "12.11",
        f"{_SCRATCH}.context.block_attention",
        ("block_forward", "merge", "ring_forward"),
    ),
)

BY_FILE = {part.file: part for part in PARTS}
BY_NAME = {name: part for part in PARTS for name in part.names}
