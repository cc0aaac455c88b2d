"""The effect of each collective: the tensor parts that each rank holds before and after it."""

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
    """Part number `part` of the sum of the tensors of the ranks `summands`, in ascending order."""

    part: int
    summands: tuple[int, ...]

    @property
    def number(self) -> int:
        """The block's value if rank r's row is 1·10^r, 2·10^r, 3·10^r, …"""
        return sum((self.part + 1) * 10**rank for rank in self.summands)


Row = tuple[Block, ...]


@dataclass(frozen=True)
class Exchange:
    """The blocks of each rank before and after one collective; undefined contents are left out."""

    operation: str
    before: tuple[Row, ...]
    after: tuple[Row, ...]


def exchange(operation: str, ranks: int) -> Exchange:
    """One collective over `ranks` ranks; the root, where there is one, is rank 0.

    send-recv goes from rank 0 to rank 1. Source: MPI 4.1, chapter 6; PyTorch's torch.distributed.
    Raises ValueError for another operation and for fewer than 2 or more than 64 ranks.
    """
    choice("operation", operation, OPERATIONS)
    whole("ranks", ranks, least=2, most=_MOST_RANKS)
    all_ranks = tuple(range(ranks))
    single = tuple((Block(0, (rank,)),) for rank in all_ranks)  # one part each
    rows = tuple(tuple(Block(part, (rank,)) for part in all_ranks) for rank in all_ranks)
    columns = tuple(tuple(Block(rank, (by,)) for by in all_ranks) for rank in all_ranks)
    gathered = tuple(Block(0, (rank,)) for rank in all_ranks)
    empty: tuple[Row, ...] = ((),) * (ranks - 1)
    before, after = {
        "broadcast": (single, (single[0],) * ranks),
        "scatter": ((rows[0], *empty), tuple((block,) for block in rows[0])),
        "gather": (single, (gathered, *empty)),
        "reduce": (single, ((Block(0, all_ranks),), *empty)),
        "all-gather": (single, (gathered,) * ranks),
        "reduce-scatter": (rows, tuple((Block(part, all_ranks),) for part in all_ranks)),
        "all-reduce": (single, ((Block(0, all_ranks),),) * ranks),
        "all-to-all": (rows, columns),
        "send-recv": ((single[0], *empty), (single[0], single[0], *empty[1:])),
    }[operation]
    return Exchange(operation, before, after)
