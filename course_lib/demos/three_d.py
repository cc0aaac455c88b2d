"""Data, tensor and pipeline parallelism together on a mesh of up to 8 ranks.

A small GPT. Eight ranks stand as 2 x 2 x 2: neighbours share each matrix (tp), groups of neighbours
hold copies (dp), and the two halves of the ranks hold different layers (pp). Everything equals one
process, and what each axis sends equals the theory.
Run it with `course demo three_d --ranks 8`, or with fewer ranks, or under torchrun.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from torch import Tensor, nn

from course_lib import launch
from course_lib.demos.shared.batch import Batch
from course_lib.demos.shared.comparison import Comparison, follow
from course_lib.demos.shared.options import BatchOptions, option
from course_lib.demos.shared.prediction import predicted_sent, predicted_stored, traffic
from course_lib.demos.shared.ranks import from_all_ranks
from course_lib.demos.shared.trainee import Trainee
from course_lib.demos.shared.training import Training, one_process
from course_lib.scratch.tensor.vocabulary import whole_gradients
from course_lib.scratch.three_d import Mesh, ThreeD
from course_lib.theory.inputs.layout import Layout
from course_lib.theory.pipelines.schedules import schedule
from course_lib.validation import choice, divisible, whole

# zb1p walks backward twice, and would exchange tensor-parallel gradients twice.
SCHEDULES = ("naive", "gpipe", "1f1b", "interleaved")


@dataclass(frozen=True)
class Options(BatchOptions):
    """What the demo can be asked for."""

    dp: int = option(0, "data-parallel degree; 0: the ranks that pp and tp leave")
    tp: int = option(0, "tensor-parallel degree; 0: 2 where it divides the ranks that pp leaves")
    pp: int = option(0, "pipeline stages; 0: 2 where it divides the ranks")
    model: str = option("5x32x4", "LAYERSxHIDDENxHEADS, or a name such as small")
    steps: int = option(3, "optimizer updates")
    micro_batches: int = option(2, "pieces of each dp rank's samples")
    schedule: str = option("1f1b", f"one of {', '.join(SCHEDULES)}")
    virtual_stages: int = option(2, "chunks on each rank under the interleaved schedule")
    sequence: int = option(16, "characters in a sample")

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("dp", "tp", "pp"):
            whole(name, getattr(self, name), least=0)
        whole("micro_batches", self.micro_batches)
        choice("schedule", self.schedule, SCHEDULES)
        whole("virtual_stages", self.virtual_stages, least=2)

    def layout(self, ranks: int) -> Layout:
        """The layout of the ranks; ValueError where degrees, ranks, model and batch do not fit."""
        dp, tp, pp = self.degrees(ranks)
        divisible("batch", self.batch, "dp*micro_batches", dp * self.micro_batches)
        layout = Layout(
            dp=dp,
            tp=tp,
            pp=pp,
            micro_batch=self.batch // (dp * self.micro_batches),
            accumulation=self.micro_batches,
            schedule=self.schedule,
            virtual_stages=self.virtual_stages if self.schedule == "interleaved" else 1,
        )
        layout.check_world(ranks)
        layout.check(self.training().shape(), self.sequence)
        return layout

    def degrees(self, ranks: int) -> tuple[int, int, int]:
        """dp, tp and pp; those that were not given are chosen to fill the ranks."""
        pp = self.pp or _two(ranks // (max(1, self.dp) * max(1, self.tp)))
        tp = self.tp or _two(ranks // (max(1, self.dp) * pp))
        return self.dp or max(1, ranks // (pp * tp)), tp, pp


def _two(ranks: int) -> int:
    return 2 if ranks and ranks % 2 == 0 else 1


@dataclass(frozen=True)
class OnMesh(Comparison):
    """The comparison, and the coordinates of each rank."""

    places: list[dict[str, int]] = field(default_factory=list)


def main(options: Options) -> OnMesh:
    """Train on the mesh; every rank verifies what it sent and what it stores."""
    rank = launch.init()
    layout, training = options.layout(rank.world), options.training()
    reference = one_process(training, rank.device)
    mesh = Mesh(layout.dp, layout.tp, layout.pp)
    stage = mesh.place.pp
    version = follow(
        Mixed(training, layout, mesh, rank),
        training,
        reference,
        predicted_sent(traffic(training, layout, stage=stage), by_axis=True),
        predicted_stored(training, layout, stage),
        axes=mesh.axes(),
    )
    return OnMesh.verified(
        "three_d",
        rank,
        options.model,
        reference,
        [version],
        notes=_notes(mesh, layout, training),
        places=[mesh.place_of(number)._asdict() for number in range(rank.world)],
    )


class Mixed(Trainee):
    """`scratch.three_d` as one version of the training."""

    def __init__(self, training: Training, layout: Layout, mesh: Mesh, rank: launch.Rank) -> None:
        self.name = f"scratch dp {layout.dp} x tp {layout.tp} x pp {layout.pp}"
        self.layout = layout
        order = schedule(layout.schedule, layout.pp, layout.accumulation, layout.virtual_stages)
        layers = layout.chunk_layers(training.shape())
        self.ours = ThreeD(training.build(rank.device), mesh, layers, order.orders)
        model = nn.ModuleList(self.ours.parts)
        super().__init__(model, training.optimizer(model.parameters()))

    def backward(self, batch: Batch) -> Tensor:
        """All that one update computes and sends."""
        return self.ours.run(*batch, self.layout.accumulation)

    def gradients(self) -> Mapping[str, Tensor]:
        """The whole gradients, from the tp ranks of all stages."""
        own: dict[str, Tensor] = {}
        for part in self.ours.parts:
            own |= {name: g.cpu() for name, g in whole_gradients(part, self.ours.region).items()}
        every = from_all_ranks(own)
        return {name: gradient for one in every for name, gradient in one.items()}


def _notes(mesh: Mesh, layout: Layout, training: Training) -> list[str]:
    """Where each rank stands and what it holds."""
    sizes = layout.chunk_layers(training.shape())
    notes = []
    for rank in range(layout.world):
        place = mesh.place_of(rank)
        layers = "+".join(str(sizes[chunk]) for chunk in layout.stage_chunks(place.pp))
        share = f"1/{layout.tp} of each matrix of" if layout.tp > 1 else "all of"
        plural = "" if layers == "1" else "s"
        notes.append(
            f"rank {rank}: pp {place.pp}, dp {place.dp}, tp {place.tp}; "
            f"{share} {layers} layer{plural}"
        )
    return notes
