"""Data, tensor and pipeline parallelism together on a mesh of up to 8 ranks.

A small GPT. Eight ranks stand as 2 x 2 x 2: neighbours share each matrix (tp), groups of neighbours
hold copies (dp), and the two halves of the ranks hold different layers (pp). Everything equals one
process, and what each axis sends equals the theory.
Run it with `course demo three_d --ranks 8`, or with fewer ranks, or under torchrun.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from course_lib import launch, mine
from course_lib.demos import collectives
from course_lib.demos.shared.comparison import Comparison
from course_lib.demos.shared.options import BatchOptions, option, whose_parts, with_yours
from course_lib.demos.shared.prediction import calls, predicted_stored, told, traffic
from course_lib.demos.shared.ranks import joined
from course_lib.demos.shared.result import Result
from course_lib.demos.shared.trainee import Trainee
from course_lib.demos.shared.training import Batch, Training
from course_lib.demos.tp.program import PAIR, own_pair
from course_lib.scratch.collectives import Peers
from course_lib.scratch.tensor import whole_gradients
from course_lib.scratch.three_d import Coordinates, Mesh, ThreeD, axes
from course_lib.theory.inputs.layout import Layout
from course_lib.theory.pipelines.schedules import schedule
from course_lib.trace import SEND, Trace
from course_lib.validation import divisible

RING = collectives.HALVES
BUILT = ("Mesh", *PAIR, "vocab_parallel_cross_entropy", "Pipeline", *RING)
# zb1p runs two backward passes, and would exchange tensor-parallel gradients twice.
SCHEDULES = ("naive", "gpipe", "1f1b", "interleaved")


@dataclass(frozen=True)
class Options(BatchOptions):
    """The options of this demo."""

    dp: int = option(0, "data-parallel degree; 0: the ranks that pp and tp leave", least=0)
    tp: int = option(
        0, "tensor-parallel degree; 0: 2 where it divides the ranks that pp leaves", least=0
    )
    pp: int = option(0, "pipeline stages; 0: 2 where it divides the ranks", least=0)
    model: str = option("5x32x4", "LAYERSxHIDDENxHEADS, or a name such as small")
    steps: int = option(3, "optimizer updates")
    micro_batches: int = option(2, "pieces of each dp rank's samples", least=1)
    schedule: str = option("1f1b", f"one of {', '.join(SCHEDULES)}", among=SCHEDULES)
    virtual_stages: int = option(2, "chunks on each rank under the interleaved schedule", least=2)
    sequence: int = option(16, "characters in a sample")
    parts: str = whose_parts()

    def layout(self, ranks: int) -> Layout:
        """The layout of the ranks; ValueError if degrees, ranks, model and batch do not fit."""
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
        """(dp, tp, pp); degrees that are 0 are chosen to fill the ranks."""
        pp = self.pp or _two(ranks // (max(1, self.dp) * max(1, self.tp)))
        tp = self.tp or _two(ranks // (max(1, self.dp) * pp))
        return self.dp or max(1, ranks // (pp * tp)), tp, pp


def _two(ranks: int) -> int:
    return 2 if ranks and ranks % 2 == 0 else 1


def main(options: Options) -> Result:
    """Train on the mesh; every rank verifies the bytes it sends and stores.

    The result has each rank's coordinates (`places`), and the learner's parts (`yours`).
    """
    training, ranks = options.training(), launch.init().world
    layout, comparison = options.layout(ranks), Comparison(training)
    mesh = mine.get("Mesh", options.parts)(layout.dp, layout.tp, layout.pp)
    yours = [name for name in BUILT if options.parts == "mine" and mine.is_mine(name)]
    comparison.follow(
        Mixed(training, layout, mesh, options.parts),
        _predicted(training, layout, mesh.place, options.parts),
        predicted_stored(training, layout, mesh.place.pp),
        axes=axes(mesh),
    )
    return comparison.result(
        "three_d",
        notes=_notes(mesh, layout, training) + _credit(yours),
        places=[mesh.place_of(number)._asdict() for number in range(ranks)],
        yours=yours,
    )


def _predicted(training: Training, layout: Layout, place: Coordinates, parts: str) -> Trace:
    """The calls of this rank in one update, by axis; a learner's ring sends messages."""
    by_theory = traffic(training, layout, stage=place.pp)
    if not with_yours(parts, *RING):
        return told(by_theory)
    sent = [*told(by_theory, "tp", "pp")]
    for entry in by_theory.collectives:
        if entry.axis == "dp":
            messages, size = ring_messages(round(entry.size_bytes) // 4, layout.dp, place.dp)
            sent += calls(SEND, entry.count * messages, entry.count * 4 * size, "dp")
    return Trace(sent)


def ring_messages(numbers: int, ranks: int, rank: int) -> tuple[int, int]:
    """(messages, elements) that one rank sends in a ring all-reduce of `numbers` elements.

    Parts differ by one element if `ranks` does not divide. In n-1 steps a rank sends all parts
    but its own, and in the next n-1 all but the next rank's.
    """
    parts = [numbers // ranks + (part < numbers % ranks) for part in range(ranks)]
    return 2 * (ranks - 1), 2 * numbers - parts[rank] - parts[(rank + 1) % ranks]


class Mixed(Trainee):
    """`scratch.three_d` as one version of the training."""

    def __init__(self, training: Training, layout: Layout, mesh: Mesh, parts: str) -> None:
        degrees = f"dp {layout.dp} x tp {layout.tp} x pp {layout.pp}"
        self.name = f"scratch {degrees}{', on your parts' if with_yours(parts, *BUILT) else ''}"
        self.layout = layout
        order = schedule(layout.schedule, layout.pp, layout.accumulation, layout.virtual_stages)
        layers = layout.chunk_layers(training.shape())
        whole = training.build(launch.init().device)
        self.ours = ThreeD(whole, mesh, layers, order.orders, **own_parts(parts))
        model = nn.ModuleList(self.ours.parts)
        super().__init__(model, training.optimizer(model.parameters()))

    def backward(self, batch: Batch) -> Tensor:
        """Run all micro-batches of one update."""
        return self.ours.run(*batch, self.layout.accumulation)

    def gradients(self) -> Mapping[str, Tensor]:
        """The full gradients, gathered over tp and merged over stages."""
        parts = (whole_gradients(part, self.ours.region) for part in self.ours.parts)
        return joined({name: g.cpu() for part in parts for name, g in part.items()})


def own_parts(parts: str) -> dict[str, Any]:
    """Keyword arguments of ThreeD: the course's parts, or the learner's where built."""
    arguments: dict[str, Any] = {
        "pair": own_pair(parts),
        "cross_entropy": mine.get("vocab_parallel_cross_entropy", parts),
        "pipeline": mine.get("Pipeline", parts),
    }
    if with_yours(parts, *RING):
        by_ring = collectives.ring(parts)
        arguments["all_reduce"] = lambda tensor, group: by_ring(tensor, Peers(group))
    return arguments


def _credit(yours: Sequence[str]) -> list[str]:
    """Notes on which parts are the learner's, and which are still the course's."""
    if not yours:
        return []
    left = [name for name in BUILT if name not in yours]
    return [f"yours: {', '.join(yours)}", f"the course's: {', '.join(left) or 'none'}"]


def _notes(mesh: Mesh, layout: Layout, training: Training) -> list[str]:
    """Notes on each rank's coordinates and its share of the model."""
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
