"""Traffic and staleness of an update: rows of a table, averages, copies, old weights.

Every trainer and every server has its own full-duplex link. A server's traffic grows with the
number of trainers: Li et al. 2014, "Scaling Distributed Machine Learning with the
Parameter Server", OSDI, sections 2 and 3.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from course_lib.checked import checked
from course_lib.theory.network.collectives import sent_bytes
from course_lib.validation import number, whole


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
        """Bytes from the server: rows · width · bytes of an element."""
        return self.rows * self.width * self.element_bytes

    @property
    def pushed_bytes(self) -> int:
        """Bytes to the server: `pulled_bytes` of gradients, an id for each row, and two headers."""
        return self.pulled_bytes + self.rows * self.id_bytes + 2 * self.header_bytes

    @property
    def total_bytes(self) -> int:
        """Bytes both ways: about 2 · rows · width · bytes of an element, for any table size."""
        return self.pulled_bytes + self.pushed_bytes

    def gathered_bytes(self, ranks: int) -> int:
        """Bytes sent by a rank without a server: its rows' ids and gradients to each other rank.

        Every rank then stores the whole table and gets all gradients: (n-1) · rows · (width · bytes
        of an element + bytes of an id).
        """
        whole("ranks", ranks)
        return (ranks - 1) * (self.pulled_bytes + self.rows * self.id_bytes)


@checked
def dense_over_sparse(exchange: RowExchange, table_rows: int, ranks: int) -> float:
    """Bytes that a rank sends to all-reduce the table's whole gradient, over the exchange's.

    The all-reduce: 2(n-1)/n · table_rows · width · bytes of an element. Above 1 the server moves
    fewer bytes for each trainer, but those of all trainers pass through its link.
    """
    whole("rows", exchange.rows)
    whole("table_rows", table_rows, least=exchange.rows)
    size = table_rows * exchange.width * exchange.element_bytes
    return sent_bytes("all-reduce", size, ranks) / exchange.total_bytes


_MOST = 10**9  # trainers or servers


@checked
@dataclass(frozen=True)
class ServedTraining:
    """`trainers` that compute for `compute_s` and exchange rows with `servers` in each update.

    The rows of an exchange are spread evenly over the servers. `bytes_per_s` is the bandwidth of
    the link of each trainer and server, one way.
    """

    exchange: RowExchange
    trainers: int
    servers: int
    compute_s: float
    bytes_per_s: float

    def __post_init__(self) -> None:
        whole("rows", self.exchange.rows)
        whole("trainers", self.trainers, most=_MOST)
        whole("servers", self.servers, most=_MOST)
        number("compute_s", self.compute_s, least=0)
        number("bytes_per_s", self.bytes_per_s, above=0)

    @property
    def alone_s(self) -> float:
        """Seconds of an update with only one trainer: compute + total bytes / link."""
        return self.compute_s + self.exchange.total_bytes / self.bytes_per_s

    @property
    def served_bytes(self) -> float:
        """Bytes of one server, both ways, in an update of all: trainers · total / servers."""
        return self.trainers * self.exchange.total_bytes / self.servers

    @property
    def in_step_s(self) -> float:
        """Seconds of an update in which all trainers pull together and push together.

        compute + max(1, trainers / servers) · total bytes / link: with fewer trainers than servers
        the trainer's link is the bottleneck.
        """
        crowd = max(1.0, self.trainers / self.servers)
        return self.compute_s + crowd * self.exchange.total_bytes / self.bytes_per_s

    @property
    def as_they_come_s(self) -> float:
        """Seconds in which each trainer makes one update, waiting only for the servers.

        max(alone, trainers · pushed bytes / (servers · link)): servers never receive less than they
        send.
        """
        pushed = self.trainers * self.exchange.pushed_bytes / self.servers
        return max(self.alone_s, pushed / self.bytes_per_s)

    def all_reduced_s(self, table_rows: int) -> float:
        """Seconds of an update where each trainer has the whole table and all-reduces its gradient.

        compute + 2(n-1)/n · table bytes / link, with n trainers and no server.
        """
        whole("table_rows", table_rows, least=self.exchange.rows)
        size = table_rows * self.exchange.width * self.exchange.element_bytes
        return self.compute_s + sent_bytes("all-reduce", size, self.trainers) / self.bytes_per_s

    @property
    def saturating_trainers(self) -> float:
        """Number of trainers that saturate the servers' links; more do not train faster.

        servers · alone / (pushed bytes / link).
        """
        return self.servers * self.alone_s / (self.exchange.pushed_bytes / self.bytes_per_s)

    @property
    def server_load(self) -> float:
        """Fraction of the time in which a server's link receives, in asynchronous training."""
        return min(1.0, self.trainers / self.saturating_trainers)

    @property
    def speed_up_in_step(self) -> float:
        """Samples per second over one trainer's, in step: trainers · alone / in step."""
        return self.trainers * self.alone_s / self.in_step_s

    @property
    def speed_up(self) -> float:
        """Samples per second over one trainer's, asynchronously: min(trainers, saturating)."""
        return min(float(self.trainers), self.saturating_trainers)


def mean_staleness(trainers: int) -> float:
    """Mean number of others' updates between a trainer's pull and its push: trainers - 1.

    At each update the trainers - 1 others hold rows pulled before it, whatever their speeds.
    """
    whole("trainers", trainers, most=_MOST)
    return float(trainers - 1)


def largest_stable_rate(late: int) -> float:
    """The learning rate below which gradient descent converges with gradients `late` updates old.

    2 · sin(π / (2 · (2 · late + 1))) on a quadratic whose second derivative is 1: 2 without a
    delay, 1 with 1, about π / (2 · late + 1) with more. Source: Levin and May 1976, "A note on
    difference-delay equations", Theoretical Population Biology 9.
    """
    whole("late", late, least=0, most=10**9)
    return 2 * math.sin(math.pi / (2 * (2 * late + 1)))


def averaged_bytes(weight_bytes: float, ranks: int, every: int) -> float:
    """Bytes that a rank sends for one update, on average: an all-reduce of the weights / `every`.

    2(n-1)/n · weight_bytes / every. With every=1 they equal DDP's, whose gradients are as large as
    the weights. Source: McMahan et al. 2017, arXiv:1602.05629, algorithm 1.
    """
    whole("every", every)
    return sent_bytes("all-reduce", weight_bytes, ranks) / every


def weight_versions(stages: int, stage: int) -> int:
    """Weight versions that a stage of PipeDream keeps: stages - stage, which counts from 0.

    A micro-batch's gradient is late by an update for each other version. Source: Harlap et al.
    2018, arXiv:1806.03377 (Narayanan et al. 2019, SOSP).
    """
    whole("stages", stages)
    whole("stage", stage, least=0, most=stages - 1)
    return stages - stage


@checked
@dataclass(frozen=True)
class Swapping:
    """Layers one after another; while one computes, the next one's weights are copied.

    `compute_s` and `swap_s` have an entry for each layer. Memory holds two layers: the one that
    computes and the next. Raises ValueError for no layers, and for lists of different lengths.
    Source: Cui et al. 2016, "GeePS", doi:10.1145/2901318.2901323.
    """

    compute_s: Sequence[float]
    swap_s: Sequence[float]

    def __post_init__(self) -> None:
        if not self.compute_s or len(self.compute_s) != len(self.swap_s):
            raise ValueError(
                f"swap_s has {len(self.swap_s)} layers and compute_s {len(self.compute_s)}: give "
                "as many of each, at least one"
            )

    @property
    def exposed_s(self) -> list[float]:
        """Seconds that each layer waits: max(0, swap - compute of the previous); the first, all."""
        before = [0.0, *self.compute_s[:-1]]
        return [max(0.0, swap - compute) for swap, compute in zip(self.swap_s, before, strict=True)]

    @property
    def serial_s(self) -> float:
        """Total seconds if each layer is copied and then computed."""
        return sum(self.swap_s) + sum(self.compute_s)

    @property
    def overlapped_s(self) -> float:
        """Total seconds if the next layer is copied meanwhile: compute plus exposed copies."""
        return sum(self.compute_s) + sum(self.exposed_s)
