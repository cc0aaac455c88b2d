"""One training step as a whole: what is trained, how, cut in which way, and on what."""

from dataclasses import dataclass, replace
from functools import cached_property

from course_lib.checked import checked
from course_lib.theory.inputs.cluster import Cluster
from course_lib.theory.inputs.hardware import ACCELERATORS
from course_lib.theory.inputs.layout import ALONE, Layout
from course_lib.theory.inputs.recipe import MIXED_16, Recipe
from course_lib.theory.inputs.shape import TransformerShape
from course_lib.validation import DERIVED, derive

GPUS_PER_NODE = 8


@dataclass(frozen=True)
class Tokens:
    """Tokens of one micro-batch on one GPU: inside and outside the tensor-parallel region."""

    inside: int
    outside: int


@checked
@dataclass(frozen=True)
class Job:
    """The one input of everything that asks about a whole training step.

    `recipe`: by default bf16 with AdamW, 16 bytes per parameter. `sequence`: tokens in a sequence,
    by default the model's context. `cluster`: by default as many
    nodes of 8 H100 as the layout needs, for questions about memory, which no network changes.
    Raises ValueError for a layout that does not fit the shape, the sequence or the cluster.
    """

    shape: TransformerShape
    recipe: Recipe = MIXED_16
    layout: Layout = ALONE
    cluster: Cluster = DERIVED
    sequence: int = DERIVED

    def __post_init__(self) -> None:
        if self.cluster is DERIVED:
            nodes = -(-self.layout.world // GPUS_PER_NODE)
            derive(self, cluster=Cluster(ACCELERATORS["H100-SXM"], nodes, GPUS_PER_NODE))
        derive(self, sequence=self.shape.context)
        self.shape.check_sequence(self.sequence)
        self.layout.check(self.shape, self.sequence)
        if self.layout.world > self.cluster.world:
            self.layout.check_world(self.cluster.world)

    def layers_of(self, chunk: int) -> list[tuple["Job", int, int]]:
        """The layers of a chunk by kind: (job, a layer, how many are like it).

        The job is this one for layers that are recomputed as the recipe says; beyond
        `recipe.recompute_layers` of them it is the same job without recomputation.
        """
        start, stop = self.layout.layer_slice(self.shape, chunk)
        most = self.recipe.recompute_layers
        split = stop if most is None else min(stop, start + most)
        first = [(self, *kind) for kind in self.shape.layer_kinds(start, split)]
        if split == stop:
            return first
        kept = self._without_recomputation
        return first + [(kept, *kind) for kind in self.shape.layer_kinds(split, stop)]

    @cached_property
    def _without_recomputation(self) -> "Job":
        """The same job with recompute "none"."""
        recipe = replace(self.recipe, recompute="none", recompute_layers=None)
        return replace(self, recipe=recipe)

    @property
    def tokens_per_update(self) -> int:
        """Tokens behind one update: global_batch · sequence."""
        return self.layout.global_batch * self.sequence

    @property
    def local_tokens(self) -> Tokens:
        """Tokens of one micro-batch on one GPU.

        inside = micro_batch · sequence / cp; outside = inside, or inside / tp under sequence
        parallelism.
        """
        inside = self.layout.micro_batch * self.sequence // self.layout.cp
        parts = self.layout.tp if self.layout.sequence_parallel else 1
        return Tokens(inside, inside // parts)
