"""The tensors of a rank, from the sizes of the shape: what `fully_shard` pads, one by one."""

from collections.abc import Iterator
from dataclasses import dataclass

from course_lib.theory.inputs.job import Job
from course_lib.theory.inputs.shape import NORM_NUMBERS

_ATTENTION = ("attention.q", "attention.k", "attention.v", "attention.out")
_MLP = {"gelu": ("mlp.up", "mlp.down"), "swiglu": ("mlp.up", "mlp.gate", "mlp.down")}


@dataclass(frozen=True)
class Piece:
    """One tensor behind tensor parallelism, before it is sharded; a vector has one column.

    `unit`: "layers", where each of `count` layers has one, or "ends". `whole`: a norm's weight or
    bias, which every tp rank holds.
    """

    name: str
    rows: int
    columns: int = 1
    unit: str = "layers"
    count: int = 1
    whole: bool = False

    @property
    def numbers(self) -> int:
        """Numbers in one of them."""
        return self.rows * self.columns

    def shard_rows(self, shards: int) -> int:
        """Rows of one shard, padding included: torch rounds up."""
        return -(-self.rows // shards)

    def padding(self, shards: int) -> int:
        """Numbers of padding in all shards together."""
        return (self.shard_rows(shards) * shards - self.rows) * self.columns

    def own_rows(self, shard: int, shards: int) -> int:
        """Rows of shard number `shard` that are not padding: the last have fewer, or none."""
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
