"""What each collective does, as blocks: who holds which part of whose tensor, before and after."""

from dataclasses import dataclass

from course_lib.validation import choice, whole

OPERATIONS = (
    "broadcast",
    "scatter",
    "gather",
    "reduce",
    "all-gather",
    "reduce-scatter",
    "all-reduce",
    "all-to-all",
    "send-recv",
)
_MOST_RANKS = 64


@dataclass(frozen=True)
class Block:
    """Part number `part` of the sum of the tensors of `summands`, which are ranks in order."""

    part: int
    summands: tuple[int, ...]

    @property
    def number(self) -> int:
        """Its value where rank r's row is 1·10^r, 2·10^r, 3·10^r, …"""
        return sum((self.part + 1) * 10**rank for rank in self.summands)


Row = tuple[Block, ...]


@dataclass(frozen=True)
class Exchange:
    """The blocks of each rank before and after one collective; what means nothing is left out."""

    operation: str
    before: tuple[Row, ...]
    after: tuple[Row, ...]


def exchange(operation: str, ranks: int) -> Exchange:
    """One collective of `ranks` ranks; the special rank, where there is one, is 0.

    send-recv goes from rank 0 to rank 1. Source: MPI 4.1, chapter 6; PyTorch's torch.distributed.
    Raises ValueError for another operation and for fewer than 2 or more than 64 ranks.
    """
    choice("operation", operation, OPERATIONS)
    whole("ranks", ranks, least=2, most=_MOST_RANKS)
    everyone = tuple(range(ranks))
    own = tuple((Block(0, (rank,)),) for rank in everyone)  # one part each
    rows = tuple(tuple(Block(part, (rank,)) for part in everyone) for rank in everyone)
    columns = tuple(tuple(Block(rank, (by,)) for by in everyone) for rank in everyone)
    gathered = tuple(Block(0, (rank,)) for rank in everyone)
    nothing: tuple[Row, ...] = ((),) * (ranks - 1)
    before, after = {
        "broadcast": (own, (own[0],) * ranks),
        "scatter": ((rows[0], *nothing), tuple((block,) for block in rows[0])),
        "gather": (own, (gathered, *nothing)),
        "reduce": (own, ((Block(0, everyone),), *nothing)),
        "all-gather": (own, (gathered,) * ranks),
        "reduce-scatter": (rows, tuple((Block(part, everyone),) for part in everyone)),
        "all-reduce": (own, ((Block(0, everyone),),) * ranks),
        "all-to-all": (rows, columns),
        "send-recv": ((own[0], *nothing), (own[0], own[0], *nothing[1:])),
    }[operation]
    return Exchange(operation, before, after)
