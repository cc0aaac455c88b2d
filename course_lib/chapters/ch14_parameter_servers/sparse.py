"""Rows of a large table: what a parameter server moves, and what an all-reduce of it all would."""

from dataclasses import dataclass

from course_lib.checked import checked
from course_lib.theory.network.collectives import sent_bytes
from course_lib.validation import whole


@dataclass(frozen=True)
class RowExchange:
    """One update of one trainer that uses `rows` different rows of `width` numbers.

    It sends their ids, gets the rows, and sends their gradients; each of its two requests begins
    with a header. Where rows lie on several servers, it makes one exchange with each. Source: Li et
    al. 2014, "Scaling Distributed Machine Learning with the Parameter Server", OSDI, sections 2, 3.
    """

    rows: int
    width: int
    element_bytes: int = 4
    id_bytes: int = 8
    header_bytes: int = 8

    def __post_init__(self) -> None:
        for name in ("width", "element_bytes"):
            whole(name, getattr(self, name))
        for name in ("rows", "id_bytes", "header_bytes"):
            whole(name, getattr(self, name), least=0)

    @property
    def pulled_bytes(self) -> int:
        """From the server: rows · width · bytes of an element."""
        return self.rows * self.width * self.element_bytes

    @property
    def pushed_bytes(self) -> int:
        """To the server: as many for the gradients, an id for each row, and two headers."""
        return self.pulled_bytes + self.rows * self.id_bytes + 2 * self.header_bytes

    @property
    def total_bytes(self) -> int:
        """Both ways: about 2 · rows · width · bytes of an element, whatever the table's size."""
        return self.pulled_bytes + self.pushed_bytes

    def gathered_bytes(self, ranks: int) -> int:
        """Sent by a rank without a server: ids and gradients of its rows to each of the others.

        Every rank then has the whole table, and the gradients of all: (n-1) · rows · (width · bytes
        of an element + bytes of an id).
        """
        whole("ranks", ranks)
        return (ranks - 1) * (self.pulled_bytes + self.rows * self.id_bytes)


@checked
def dense_over_sparse(exchange: RowExchange, table_rows: int, ranks: int) -> float:
    """Bytes that a rank sends to all-reduce the table's whole gradient, over the exchange's.

    2(n-1)/n · table_rows · width · bytes of an element. Above 1 the server moves less for each
    trainer; but it moves the exchanges of all trainers through its own link.
    """
    whole("rows", exchange.rows)
    whole("table_rows", table_rows, least=exchange.rows)
    size = table_rows * exchange.width * exchange.element_bytes
    return sent_bytes("all-reduce", size, ranks) / exchange.total_bytes
