"""What the theory says about a rank, and the name of all that torch does otherwise.

The differences are computed from the sizes of the tensors, before anything is rehearsed: what a
rehearsal finds beyond them has no name.
"""

from collections.abc import Callable
from dataclasses import dataclass

from course_lib.measure.wire import Total
from course_lib.rehearsal.pieces import Piece, pieces
from course_lib.theory.inputs.job import Job
from course_lib.theory.memory.states import local_parameters, sharded_states
from course_lib.theory.network.step_traffic import step_traffic

_COUNTER_BYTES = 4  # torch's AdamW counts the updates of each tensor in an fp32 number


@dataclass(frozen=True)
class Difference:
    """Bytes, and calls that carry them, by which torch differs from the theory, with the reason."""

    size_bytes: int
    reason: str
    calls: int = 0


Differences = dict[str, list[Difference]]  # by what is counted


def stored(job: Job) -> dict[str, int]:
    """The theory's bytes of a rank: weights, gradients, moments."""
    states = sharded_states(local_parameters(job.shape, job.layout), job.recipe, job.layout)
    return {
        "weights": states.parameters_bytes,
        "gradients": states.gradients_bytes,
        "moments": states.optimizer_state_bytes,
    }


def sent(job: Job) -> dict[str, Total]:
    """The theory's calls and bytes of an update, by axis and operation."""
    totals: dict[str, Total] = {}
    for entry in step_traffic(job).collectives:
        name = f"{entry.axis} {entry.operation}"
        calls, size_bytes = totals.get(name, (0, 0))
        more = round(entry.count * entry.size_bytes)
        totals[name] = Total(calls + entry.count, size_bytes + more)
    return totals


@dataclass(frozen=True)
class Named:
    """The differences of one rank, all of them, by what is counted."""

    job: Job
    rank: int

    def all(self) -> Differences:
        """Those that are not zero."""
        found = self._stored() | self._dp() | self._tp()
        return {
            what: [d for d in differences if d.size_bytes or d.calls]
            for what, differences in found.items()
        }

    @property
    def tensors(self) -> tuple[Piece, ...]:
        """The tensors that tensor parallelism leaves this rank."""
        return pieces(self.job, self.rank % self.job.layout.tp)

    @property
    def shards(self) -> int:
        """Parts into which `fully_shard` cuts each of them."""
        return self.job.layout.shard_ranks

    def _sum(self, of: Callable[[Piece], int]) -> int:
        return sum(tensor.count * of(tensor) for tensor in self.tensors)

    def _held(self) -> int:
        """Numbers of a shard, padding included."""
        return self._sum(lambda t: t.shard_rows(self.shards) * t.columns)

    def _stored(self) -> Differences:
        recipe, theory = self.job.recipe, stored(self.job)
        weight = recipe.weight_bytes
        mean = theory["weights"] // weight  # numbers of a shard, as the theory rounds them
        here = -(-self._sum(lambda t: t.numbers) // self.shards)  # the same for this tp rank
        words, padding = weight * (here - mean), weight * (self._held() - here)
        shard = self.rank // self.job.layout.tp % self.shards
        own = self._sum(lambda t: t.own_rows(shard, self.shards) * t.columns)
        moment = theory["moments"] // mean
        counters = self._sum(lambda _: 1) if recipe.optimizer.startswith("adamw") else 0
        return {
            "weights": [self._words(words), self._padding(padding)],
            "gradients": [
                Difference(
                    mean * (weight - recipe.gradient_bytes),
                    "gradients are reduced in one precision and kept in that of the weights",
                ),
                self._words(words),
                self._padding(padding),
            ],
            "moments": [
                self._words(moment * (here - mean)),
                Difference(
                    moment * (own - here),
                    f"shard {shard} has {own:,} numbers without padding, the mean one {here:,}",
                ),
                Difference(_COUNTER_BYTES * counters, f"step counters of {counters:,} tensors"),
            ],
        }

    def _dp(self) -> Differences:
        """Whole units are gathered and reduced, and shards of them between copies."""
        layout, recipe = self.job.layout, self.job.recipe
        passes = layout.passes if layout.reshard else 1
        gathers = {"layers": passes * (2 if layout.reshard else 1), "ends": passes}
        reductions = dict.fromkeys(gathers, layout.reductions)
        found = {}
        if self.shards > 1:
            found["dp all-gather"] = self._units(gathers, recipe.compute_bytes)
            found["dp reduce-scatter"] = self._units(reductions, recipe.gradient_bytes)
        if layout.shard_groups > 1:
            each = layout.reductions * recipe.gradient_bytes
            here = round(each * self._sum(lambda t: t.numbers) / self.shards)
            found["dp all-reduce"] = [
                self._words(here - sent(self.job)["dp all-reduce"].size_bytes),
                self._padding(each * self._held() - here),
            ]
        return found

    def _units(self, times: dict[str, int], each_bytes: int) -> list[Difference]:
        ends = sum(t.numbers for t in self.tensors if t.unit == "ends")
        missing = ends - local_parameters(self.job.shape, self.job.layout).ends_dense
        padding = self._sum(lambda t: times[t.unit] * t.padding(self.shards))
        return [
            self._words(each_bytes * times["ends"] * missing),
            self._padding(each_bytes * padding),
        ]

    def _tp(self) -> Differences:
        """What sequence parallelism sends beside activations: gradients of what is not cut."""
        shape, layout, recipe = self.job.shape, self.job.layout, self.job.recipe
        if layout.tp == 1 or not layout.sequence_parallel:
            return {}
        each = recipe.gradient_bytes if layout.adds_up else recipe.compute_bytes
        norms = self._sum(lambda t: t.whole)
        found = {
            "tp all-reduce": [
                Difference(
                    layout.reductions * norms * shape.hidden * each,
                    f"gradients of the {norms} tensors of norms, each for itself",
                    layout.reductions * norms,
                )
            ]
        }
        if shape.learned_positions:
            size = layout.passes * self.job.sequence * shape.hidden * recipe.compute_bytes
            reason = "gradient of the positions, which every rank looks up"
            found["tp all-gather"] = [Difference(size, reason, layout.passes)]
        return found

    def _words(self, size_bytes: int) -> Difference:
        """Of a vocabulary that tp does not divide: the theory counts the first rank's for all."""
        tp, vocab = self.job.layout.tp, self.job.shape.vocab
        rank, words = self.rank % tp, Piece("words", vocab)
        has = words.own_rows(rank, tp)
        reason = f"tp rank {rank} has {has:,} words, the theory counts {words.shard_rows(tp):,}"
        return Difference(size_bytes, reason)

    def _padding(self, size_bytes: int) -> Difference:
        """Of tensors whose rows the shards do not divide: the one with the most is named."""
        most = max(self.tensors, key=lambda t: t.count * t.padding(self.shards))
        return Difference(
            size_bytes,
            f"padding, most of it of {most.name}: {self.shards} shards of "
            f"{most.shard_rows(self.shards):,} rows, and it has {most.rows:,}",
        )
