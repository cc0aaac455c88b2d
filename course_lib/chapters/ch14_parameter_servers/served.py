"""Training with parameter servers: the time of an update, and how late gradients come.

Every trainer and every server has a link of its own, both ways at once. What a server sends and
receives grows with the trainers: Li et al. 2014, "Scaling Distributed Machine Learning with the
Parameter Server", OSDI, section 2.
"""

import math
from dataclasses import dataclass

from course_lib.chapters.ch14_parameter_servers.sparse import RowExchange
from course_lib.checked import checked
from course_lib.theory.network.collectives import sent_bytes
from course_lib.validation import number, whole

_MOST = 10**9  # trainers, servers


@checked
@dataclass(frozen=True)
class ServedTraining:
    """`trainers` that compute for `compute_s` and exchange rows with `servers` in each update.

    The rows of an exchange lie on all servers alike. `bytes_per_s` is the link of a trainer and of
    a server, one way.
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
        """An update of one trainer whom nobody disturbs: compute + total bytes / link."""
        return self.compute_s + self.exchange.total_bytes / self.bytes_per_s

    @property
    def served_bytes(self) -> float:
        """What one server sends and receives in an update of all: trainers · total / servers."""
        return self.trainers * self.exchange.total_bytes / self.servers

    @property
    def in_step_s(self) -> float:
        """An update where all pull together and all push together.

        compute + max(1, trainers / servers) · total bytes / link: below as many trainers as servers
        it is the trainer's own link that counts.
        """
        crowd = max(1.0, self.trainers / self.servers)
        return self.compute_s + crowd * self.exchange.total_bytes / self.bytes_per_s

    @property
    def as_they_come_s(self) -> float:
        """The time in which each trainer makes one update, and waits for nobody but the servers.

        max(alone, trainers · pushed bytes / (servers · link)): what comes in is never less than
        what goes out.
        """
        pushed = self.trainers * self.exchange.pushed_bytes / self.servers
        return max(self.alone_s, pushed / self.bytes_per_s)

    def all_reduced_s(self, table_rows: int) -> float:
        """An update where every trainer has the whole table instead, and its gradient is summed.

        compute + 2(n-1)/n · table bytes / link, with n trainers and no server.
        """
        whole("table_rows", table_rows, least=self.exchange.rows)
        size = table_rows * self.exchange.width * self.exchange.element_bytes
        return self.compute_s + sent_bytes("all-reduce", size, self.trainers) / self.bytes_per_s

    @property
    def saturating_trainers(self) -> float:
        """Trainers that keep the servers' links busy all the time; more do not train faster.

        servers · alone / (pushed bytes / link).
        """
        return self.servers * self.alone_s / (self.exchange.pushed_bytes / self.bytes_per_s)

    @property
    def server_load(self) -> float:
        """Part of the time in which a server's link receives, where nobody waits for others."""
        return min(1.0, self.trainers / self.saturating_trainers)

    @property
    def speed_up_in_step(self) -> float:
        """Samples per second over those of one trainer: trainers · alone / in step."""
        return self.trainers * self.alone_s / self.in_step_s

    @property
    def speed_up(self) -> float:
        """The same where nobody waits: min(trainers, saturating trainers)."""
        return min(float(self.trainers), self.saturating_trainers)


def mean_staleness(trainers: int, updates: int | None = None) -> float:
    """Updates by others between a trainer's pull and its push, on average: trainers - 1.

    Each update finds the trainers - 1 others with rows in their hands, fast ones or slow ones.
    With `updates` of each trainer, all equally fast: (trainers - 1) · (1 - 1 / (2 · updates)),
    since in the first round nobody is late at first.
    """
    whole("trainers", trainers, most=_MOST)
    if updates is None:
        return float(trainers - 1)
    whole("updates", updates)
    return (trainers - 1) * (1 - 1 / (2 * updates))


def largest_stable_rate(late: int, curvature: float = 1.0) -> float:
    """Gradient descent with gradients `late` updates old converges below this learning rate.

    2 · sin(π / (2 · (2 · late + 1))) / curvature, on a quadratic whose largest second derivative is
    `curvature`: 2 without a delay, 1 with 1, about π / (2 · late + 1) with more. Source: Levin and
    May 1976, "A note on difference-delay equations", Theoretical Population Biology 9.
    """
    whole("late", late, least=0, most=10**9)
    number("curvature", curvature, above=0)
    return 2 * math.sin(math.pi / (2 * (2 * late + 1))) / curvature
