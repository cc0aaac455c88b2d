"""What the theory says about a rank, and the name of all that torch does otherwise.

The differences are computed from the sizes of the tensors, before anything is rehearsed: what a
rehearsal finds beyond them has no name.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from course_lib.rehearsal.otherwise import rows
from course_lib.rehearsal.pieces import Piece, pieces
from course_lib.theory.inputs.job import Job
from course_lib.theory.memory.states import local_parameters, sharded_states
from course_lib.theory.network.step_traffic import step_traffic
from course_lib.trace import Total

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


def differences(job: Job, rank: int) -> Differences:
    """All that torch does otherwise on this rank, by what is counted."""
    found: Differences = {}
    one = _Rank(job, rank)
    for what, difference in (*one.kept(), *one.data_parallel(), *one.tensor_parallel()):
        if difference.size_bytes or difference.calls:
            found.setdefault(what, []).append(difference)
    return found


Named = Iterator[tuple[str, Difference]]


@dataclass(frozen=True)
class _Rank:
    """The sizes of one rank. Two reasons return: words of the vocabulary, and padding."""

    job: Job
    rank: int

    @property
    def tensors(self) -> tuple[Piece, ...]:
        """The tensors that tensor parallelism leaves this rank."""
        return pieces(self.job, self.rank % self.job.layout.tp)

    @property
    def shards(self) -> int:
        """Parts into which `fully_shard` cuts each of them."""
        return self.job.layout.shard_ranks

    def sum(self, of: Callable[[Piece], int]) -> int:
        return sum(tensor.count * of(tensor) for tensor in self.tensors)

    @property
    def held(self) -> int:
        """Numbers of a shard, padding included."""
        return self.sum(lambda t: t.shard_rows(self.shards) * t.columns)

    def kept(self) -> Named:
        recipe, theory = self.job.recipe, stored(self.job)
        weight = recipe.weight_bytes
        mean = theory["weights"] // weight  # numbers of a shard, as the theory rounds them
        here = -(-self.sum(lambda t: t.numbers) // self.shards)  # the same for this tp rank
        for what in ("weights", "gradients"):
            yield what, self.words(weight * (here - mean))
            yield what, self.padding(weight * (self.held - here))
        precision = "gradients are reduced in one precision and kept in that of the weights"
        yield "gradients", Difference(mean * (weight - recipe.gradient_bytes), precision)
        moment, shard = theory["moments"] // mean, self.rank // self.job.layout.tp % self.shards
        own = self.sum(lambda t: t.own_rows(shard, self.shards) * t.columns)
        mean_one = f"shard {shard} has {own:,} numbers without padding, the mean one {here:,}"
        yield "moments", self.words(moment * (here - mean))
        yield "moments", Difference(moment * (own - here), mean_one)
        if recipe.optimizer.startswith("adamw"):
            count = self.sum(lambda _: 1)
            counters = f"step counters of {count:,} tensors"
            yield "moments", Difference(_COUNTER_BYTES * count, counters)

    def data_parallel(self) -> Named:
        """Whole units are gathered and reduced, and shards of them between copies."""
        layout, recipe = self.job.layout, self.job.recipe
        passes = layout.passes if layout.reshard else 1
        gathers = {"layers": passes * (2 if layout.reshard else 1), "ends": passes}
        reductions = dict.fromkeys(gathers, layout.reductions)
        if self.shards > 1:
            yield from self.units("dp all-gather", gathers, recipe.compute_bytes)
            yield from self.units("dp reduce-scatter", reductions, recipe.gradient_bytes)
        if layout.shard_groups > 1:
            what, each = "dp all-reduce", layout.reductions * recipe.gradient_bytes
            here = round(each * self.sum(lambda t: t.numbers) / self.shards)
            yield what, self.words(here - sent(self.job)[what].size_bytes)
            yield what, self.padding(each * self.held - here)

    def units(self, what: str, times: dict[str, int], each_bytes: int) -> Named:
        ends = sum(t.numbers for t in self.tensors if t.unit == "ends")
        missing = ends - local_parameters(self.job.shape, self.job.layout).ends_dense
        yield what, self.words(each_bytes * times["ends"] * missing)
        padding = self.sum(lambda t: times[t.unit] * t.padding(self.shards))
        yield what, self.padding(each_bytes * padding)

    def tensor_parallel(self) -> Named:
        """What sequence parallelism sends beside activations: gradients of what is not cut."""
        if self.job.layout.tp > 1 and self.job.layout.sequence_parallel:
            for row in rows("torch, sequence parallelism"):
                calls = row.calls(self.job)
                size = calls * row.each_bytes(self.job)
                yield row.what, Difference(size, row.why.format(calls), calls)

    def words(self, size_bytes: int) -> Difference:
        """Of a vocabulary that tp does not divide: the theory counts the first rank's for all."""
        tp, vocab = self.job.layout.tp, self.job.shape.vocab
        rank, words = self.rank % tp, Piece("words", vocab)
        has = words.own_rows(rank, tp)
        reason = f"tp rank {rank} has {has:,} words, the theory counts {words.shard_rows(tp):,}"
        return Difference(size_bytes, reason)

    def padding(self, size_bytes: int) -> Difference:
        """Of tensors whose rows the shards do not divide: the one with the most is named."""
        most = max(self.tensors, key=lambda t: t.count * t.padding(self.shards))
        return Difference(
            size_bytes,
            f"padding, most of it of {most.name}: {self.shards} shards of "
            f"{most.shard_rows(self.shards):,} rows, and it has {most.rows:,}",
        )
