"""Where a rank deviates from the theory: padding of single tensors, and extra collectives."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from course_lib.demos.shared.extra_calls import rows
from course_lib.theory.inputs.job import Job
from course_lib.theory.inputs.shape import NORM_NUMBERS
from course_lib.theory.memory.states import local_parameters, sharded_states
from course_lib.theory.network.step_traffic import step_traffic
from course_lib.trace import Total

_ATTENTION = ("attention.q", "attention.k", "attention.v", "attention.out")
_MLP = {"gelu": ("mlp.up", "mlp.down"), "swiglu": ("mlp.up", "mlp.gate", "mlp.down")}


@dataclass(frozen=True)
class Piece:
    """One tensor after the tensor-parallel split, before sharding; a vector has one column.

    `unit`: "layers", where each of `count` layers has one, or "ends". `whole`: a norm's weight or
    bias, which is replicated over tp.
    """

    name: str
    rows: int
    columns: int = 1
    unit: str = "layers"
    count: int = 1
    whole: bool = False

    @property
    def numbers(self) -> int:
        """Elements of one tensor."""
        return self.rows * self.columns

    def shard_rows(self, shards: int) -> int:
        """Rows of one shard, padding included: torch rounds up."""
        return -(-self.rows // shards)

    def padding(self, shards: int) -> int:
        """Elements of padding, summed over all shards."""
        return (self.shard_rows(shards) * shards - self.rows) * self.columns

    def own_rows(self, shard: int, shards: int) -> int:
        """Rows of shard `shard` without padding: the last shards have fewer, or none."""
        each = self.shard_rows(shards)
        return min(each, max(0, self.rows - shard * each))


def pieces(job: Job, tp_rank: int) -> tuple[Piece, ...]:
    """All tensors of tp rank `tp_rank`."""
    return (*_layer(job), *_ends(job, tp_rank))


def _layer(job: Job) -> Iterator[Piece]:
    shape, tp = job.shape, job.layout.tp
    names = (*_ATTENTION, *_MLP[shape.mlp])
    for name, matrix in zip(names, shape.layer_matrices(0), strict=True):
        by_columns = name in ("attention.out", "mlp.down")
        inputs = matrix.inputs // tp if by_columns else matrix.inputs
        outputs = matrix.outputs if by_columns else matrix.outputs // tp
        yield Piece(name, outputs, inputs, count=shape.layers)
        if matrix.bias:
            yield Piece(f"{name}.bias", outputs, count=shape.layers)
    for norm in ("norm1", "norm2"):
        for part in _norm(job):
            yield Piece(f"{norm}.{part}", shape.hidden, count=shape.layers, whole=True)


def _ends(job: Job, tp_rank: int) -> Iterator[Piece]:
    shape = job.shape
    words = Piece("embedding", shape.vocab).own_rows(tp_rank, job.layout.tp)
    yield Piece("embedding", words, shape.hidden, "ends")
    if shape.learned_positions:
        yield Piece("positions", shape.context, shape.hidden, "ends")
    for part in _norm(job):
        yield Piece(f"norm.{part}", shape.hidden, unit="ends", whole=True)
    if not shape.tied_embeddings:
        yield Piece("head", words, shape.hidden, "ends")


def _norm(job: Job) -> tuple[str, ...]:
    return ("weight", "bias")[: NORM_NUMBERS[job.shape.norm]]


_COUNTER_BYTES = 4  # torch's AdamW counts the updates of each tensor in an fp32 number


@dataclass(frozen=True)
class Difference:
    """Extra bytes and calls of torch compared with the theory, with the reason."""

    size_bytes: int
    reason: str
    calls: int = 0


Differences = dict[str, list[Difference]]  # by what is counted


def stored(job: Job) -> dict[str, int]:
    """The theory's bytes per rank: weights, gradients, moments."""
    states = sharded_states(local_parameters(job.shape, job.layout), job.recipe, job.layout)
    return {
        "weights": states.parameters_bytes,
        "gradients": states.gradients_bytes,
        "moments": states.optimizer_state_bytes,
    }


def sent(job: Job) -> dict[str, Total]:
    """The theory's calls and bytes of one update, by "axis operation"."""
    totals: dict[str, Total] = {}
    for entry in step_traffic(job).collectives:
        name = f"{entry.axis} {entry.operation}"
        calls, size_bytes = totals.get(name, (0, 0))
        more = round(entry.count * entry.size_bytes)
        totals[name] = Total(calls + entry.count, size_bytes + more)
    return totals


def differences(job: Job, rank: int) -> Differences:
    """All deviations of torch from the theory on this rank, by counted quantity."""
    by_quantity: Differences = {}
    one = _Rank(job, rank)
    for what, difference in (*one.kept(), *one.data_parallel(), *one.tensor_parallel()):
        if difference.size_bytes or difference.calls:
            by_quantity.setdefault(what, []).append(difference)
    return by_quantity


Named = Iterator[tuple[str, Difference]]


@dataclass(frozen=True)
class _Rank:
    """The deviations of one rank. Common reasons: vocabulary split, and padding."""

    job: Job
    rank: int

    @property
    def tensors(self) -> tuple[Piece, ...]:
        """This rank's tensors after the tensor-parallel split."""
        return pieces(self.job, self.rank % self.job.layout.tp)

    @property
    def shards(self) -> int:
        """The number of shards into which `fully_shard` splits each tensor."""
        return self.job.layout.shard_ranks

    def sum(self, of: Callable[[Piece], int]) -> int:
        return sum(tensor.count * of(tensor) for tensor in self.tensors)

    @property
    def held(self) -> int:
        """Elements of a shard, padding included."""
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
        """Units are gathered and reduced; their shards are all-reduced between replicas."""
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
        """Sequence parallelism also sends gradients of replicated parameters."""
        if self.job.layout.tp > 1 and self.job.layout.sequence_parallel:
            for row in rows("torch, sequence parallelism"):
                calls = row.calls(self.job)
                size = calls * row.each_bytes(self.job)
                yield row.what, Difference(size, row.why.format(calls), calls)

    def words(self, size_bytes: int) -> Difference:
        """A vocabulary that tp does not divide: the theory counts rank 0's words for all."""
        tp, vocab = self.job.layout.tp, self.job.shape.vocab
        rank, words = self.rank % tp, Piece("words", vocab)
        has = words.own_rows(rank, tp)
        reason = f"tp rank {rank} has {has:,} words, the theory counts {words.shard_rows(tp):,}"
        return Difference(size_bytes, reason)

    def padding(self, size_bytes: int) -> Difference:
        """Tensors whose rows the shards do not divide; names the one with most padding."""
        most = max(self.tensors, key=lambda t: t.count * t.padding(self.shards))
        return Difference(
            size_bytes,
            f"padding, most of it of {most.name}: {self.shards} shards of "
            f"{most.shard_rows(self.shards):,} rows, and it has {most.rows:,}",
        )
