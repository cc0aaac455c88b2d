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
    Part("fsdp", "9.11", f"{_SCRATCH}.fsdp.mini", ("Unit", "FSDP")),
    Part(
        "tensor",
        "10.11",
        f"{_SCRATCH}.tensor.region",
        ("Copy", "Sum", "ColumnParallelLinear", "RowParallelLinear"),
    ),
    Part("sequence", "10.12", f"{_SCRATCH}.tensor.sequence", ("Gather", "SumScatter")),
    Part(
        "vocabulary",
        "10.13",
        f"{_SCRATCH}.tensor.vocabulary",
        ("vocab_parallel_cross_entropy",),
    ),
)

BY_FILE = {part.file: part for part in PARTS}
BY_NAME = {name: part for part in PARTS for name in part.names}
