"""The parts that a learner builds: where each is kept, and where the course has its own."""

from dataclasses import dataclass

_SCRATCH = "course_lib.scratch"
_THEORY = "course_lib.theory"


@dataclass(frozen=True)
class Part:
    """One build: `names` are kept in `mine/<file>.py`; the course's own stand in module `home`.

    `given` is what the learner imports from that module, or may, and does not write.
    """

    file: str
    build: str  # the exercise's id
    home: str
    names: tuple[str, ...]
    given: tuple[str, ...] = ()


PARTS = (
    Part(
        "accumulation",
        "2.10",
        f"{_SCRATCH}.accumulation",
        ("accumulate", "accumulate_ddp"),
        given=("loss_sum", "count_tokens"),
    ),
    Part("master_adamw", "3.11", f"{_SCRATCH}.precision", ("adamw_update", "MasterAdamW")),
    Part(
        "eight_bit",
        "3.12",
        f"{_SCRATCH}.precision",
        ("quantise", "dequantise", "AdamW8bit"),
        given=("dynamic_levels", "adamw_update"),
    ),
    Part("checkpointing", "4.6", f"{_SCRATCH}.checkpointing", ("Checkpoint",)),
    Part(
        "ring",
        build="6.11",
        home=f"{_SCRATCH}.collectives",
        names=("ring_reduce_scatter", "ring_all_gather"),
        given=("Peers",),
    ),
    Part("tree", "6.12", f"{_SCRATCH}.collectives", ("tree_all_reduce",), given=("Peers",)),
    Part("ddp", "7.10", f"{_SCRATCH}.ddp", ("Bucket", "DDP"), given=("after_backward", "fill")),
    Part(
        "zero",
        "8.11",
        f"{_SCRATCH}.zero",
        ("Unit", "Zero", "clip"),
        given=("OptimizerPlace", "flatten", "units_of", "views"),
    ),
    Part(
        "fsdp",
        "9.11",
        f"{_SCRATCH}.fsdp",
        ("FSDPUnit", "FSDP"),
        given=("Gather", "Hooked", "remove"),
    ),
    Part(
        "tensor",
        "10.11",
        f"{_SCRATCH}.tensor",
        ("Copy", "Sum", "ColumnParallelLinear", "RowParallelLinear"),
    ),
    Part("sequence", "10.12", f"{_SCRATCH}.tensor", ("Gather", "SumScatter")),
    Part(
        "vocabulary",
        "10.13",
        f"{_SCRATCH}.vocabulary",
        ("vocab_parallel_cross_entropy",),
    ),
    Part("pipeline", "11.11", f"{_SCRATCH}.pipeline", ("Pipeline",)),
    Part(
        "experts", "12.10", f"{_SCRATCH}.experts", ("AllToAll", "Dispatcher"), given=("by_expert",)
    ),
    Part(
        "ring_attention",
        "12.11",
        f"{_SCRATCH}.context",
        ("block_forward", "merge", "ring_forward"),
        given=("Passing", "SequenceRing"),
    ),
    Part("mesh", "13.12", f"{_SCRATCH}.three_d", ("Mesh",), given=("Coordinates", "own_group")),
    Part(
        "server",
        "14.10",
        f"{_SCRATCH}.parameter_server",
        ("RemoteTable", "ParameterServer"),
        given=("Messages",),
    ),
    Part(
        "launcher",
        "15.10",
        f"{_SCRATCH}.launcher",
        ("rank_environment", "launch_ranks", "end_ranks", "setup", "cleanup"),
        given=("free_port",),
    ),
    Part(
        "reshard",
        "15.11",
        f"{_SCRATCH}.recovery",
        ("write_whole", "save_shard", "load_shard"),
        given=(
            "columns",
            "remove_old",
            "complete",
            "CheckpointError",
            "read_manifest",
            "read_shard",
        ),
    ),
    Part("ibstat", "16.12", "course_lib.clinic.ports", ("ibstat",), given=("Port",)),
    Part("divergence", "16.13", "course_lib.diagnosing.divergence", ("first_divergence",)),
    Part(
        "shared_rate",
        "17.11",
        f"{_THEORY}.step.streams",
        ("rates", "shared_timeline"),
        given=("Task", "Span", "SharedTimeline"),
    ),
    Part(
        "claims",
        "17.12",
        "course_lib.chapters.ch17_capstone.claimed",
        ("audit_run",),
        given=("JudgedRun",),
    ),
)

BY_FILE = {part.file: part for part in PARTS}
BY_NAME = {name: part for part in PARTS for name in part.names}
