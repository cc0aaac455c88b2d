"""Build 14.10: a table on servers; trainers pull its rows and push their gradients."""

import copy
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from course_lib.checking.build import Step, build
from course_lib.checking.builds.compared import expect_sent, expect_tensor
from course_lib.checking.builds.outcome import Outcome
from course_lib.checking.builds.ranks import on_ranks
from course_lib.checking.exercises import Wrong
from course_lib.checking.races import Race
from course_lib.theory.network.sparse import RowExchange

if TYPE_CHECKING:
    from torch import Tensor

    from course_lib.scratch.parameter_server.messages import Messages

_ROWS, _UPDATES = 11, 2
_ARRIVED_S = 0.03  # in which a message has come where it goes


@dataclass(frozen=True)
class _Case:
    """The rows that each trainer draws in each update, as nested lists of any shape.

    `order` has the ranks of the servers, the first ones, as the table counts them.
    """

    drawn: tuple[Any, ...]
    order: tuple[int, ...] = (0,)
    width: int = 3
    rate: float = 0.5

    @property
    def servers(self) -> int:
        return len(self.order)

    def rows_of(self, server: int) -> slice:
        """The rows of the table that lie on the server with this rank."""
        return slice(self.order.index(server), None, self.servers)

    @property
    def ranks(self) -> int:
        return self.servers + len(self.drawn)

    @property
    def trainers(self) -> range:
        return range(self.servers, self.ranks)

    def ids(self, trainer: int, update: int = 0) -> "Tensor":
        """What the trainer with this rank draws: other rows in each update, in another shape."""
        import torch

        ids = torch.tensor(self.drawn[trainer - self.servers])
        return ((3 * ids + 2) % _ROWS).flatten() if update else ids

    def exchanges(self, trainer: int, update: int) -> list[RowExchange]:
        """What a trainer exchanges with each server, by rank."""
        rows = set(self.ids(trainer, update).flatten().tolist())
        counts = [
            sum(self.order[row % self.servers] == server for row in rows)
            for server in self.every_server
        ]
        return [RowExchange(count, self.width) for count in counts]

    def table(self) -> "Tensor":
        """(11, width), at the start."""
        import torch

        return torch.arange(1.0, 1 + _ROWS * self.width).view(_ROWS, self.width)

    @property
    def every_server(self) -> range:
        return range(self.servers)


_DISTINCT = _Case(([7, 0, 4], [4, 2, 1, 9]))
_REPEATED = _Case(([[4, 0], [9, 4]], [[2, 4, 2], [2, 5, 1]]))
_SERVERS = _Case(([[4, 0], [10, 4]], [[3, 5], [8, 3], [3, 1]]), order=(1, 0, 2), width=2, rate=0.25)
_LATE = _Case(([1, 4, 2], [4, 1], [2, 1]), order=(1, 0))


def _gradient(trainer: int, rows: "Tensor") -> "Tensor":
    """What a trainer finds for the rows that it has drawn: a different number at each place."""
    import torch

    return 10.0**trainer + torch.arange(float(rows.numel())).view_as(rows) + 0.1 * rows


def _messages() -> "Messages":
    import torch.distributed as dist

    from course_lib.scratch.parameter_server.messages import Messages

    assert dist.group.WORLD is not None  # launch has made it
    return Messages(dist.group.WORLD)


def _server_of(parts: SimpleNamespace, case: _Case, rank: int) -> Any:
    own = case.table()[case.rows_of(rank)].clone()
    return parts.ParameterServer(own, case.rate, list(case.trainers), _messages())


def _remote_of(parts: SimpleNamespace, case: _Case) -> Any:
    return parts.RemoteTable(case.width, list(case.order), _messages())


def _pull_elsewhere(parts: SimpleNamespace, case: _Case, ids: "Tensor") -> None:
    """Pull rows of another table, whose servers are no ranks: nothing is sent."""
    from course_lib.scratch.parameter_server.messages import Messages

    class Nowhere(Messages):
        def announce(self, rows: int, to: int) -> None:
            pass

        def send(self, tensor: "Tensor", to: int) -> None:
            pass

        def receive_rows(self, count: int, width: int, source: int) -> "Tensor":
            import torch

            del source  # it may be given by its name
            return torch.zeros(count, width)

    other = parts.RemoteTable(case.width, list(case.order), Nowhere(_messages().group))
    other.pull(_reversed(ids))


def _reversed(ids: "Tensor") -> "Tensor":
    return ids.flip(list(range(ids.dim())))


def _in_step(parts: SimpleNamespace, case: _Case) -> Any:
    """On a rank: a server's table and whole gradient after each update, or a trainer's rows."""
    import torch.distributed as dist

    rank, found = dist.get_rank(), []
    if rank < case.servers:
        server = _server_of(parts, case, rank)
        for _ in range(_UPDATES):
            whole = server.serve_together()
            found.append(copy.deepcopy((server.table, whole)))  # it may use them again
        return found
    remote = _remote_of(parts, case)
    for update in range(_UPDATES):
        ids = case.ids(rank, update)
        rows = remote.pull(ids)
        found.append(rows)
        if getattr(rows, "shape", None) != (*ids.shape, case.width):
            rows = case.table()[ids]  # what came is refused; a server must not wait for it
        _pull_elsewhere(parts, case, ids)
        remote.push(_gradient(rank, rows))
    return found


def _alone(case: _Case) -> tuple[list["Tensor"], list["Tensor"]]:
    """The table before each update and at the end, and each update's gradient, in one process."""
    import torch

    tables, gradients = [case.table()], []
    for update in range(_UPDATES):
        whole = torch.zeros(_ROWS, case.width)
        for trainer in case.trainers:
            ids = case.ids(trainer, update)
            its = _gradient(trainer, tables[-1][ids])
            whole.index_add_(0, ids.flatten(), its.flatten(0, -2))
        gradients.append(whole)
        tables.append(tables[-1] - case.rate * whole)
    return tables, gradients


def _check_in_step(case: _Case, parts: SimpleNamespace) -> None:
    outcomes = on_ranks(_in_step, parts, case, ranks=case.ranks)
    for update in range(_UPDATES):
        _expect_rows(outcomes, case, update)
        _expect_update(outcomes, case, update)
    _expect_bytes(outcomes, case)


def _expect_rows(outcomes: list[Outcome], case: _Case, update: int) -> None:
    """Each trainer has the rows of the table as it was before the update."""
    import torch

    tables, _ = _alone(case)
    before = tables[update]
    for trainer in case.trainers:
        ids = case.ids(trainer, update)
        distinct = ids.unique()
        others = {"the rows in rising order of their numbers": before[distinct]}
        if trainer > case.servers:  # another trainer's gradient may have changed them already
            first = case.ids(case.servers, update)
            changed = before.clone()
            its = _gradient(case.servers, before[first])
            changed.index_add_(0, first.flatten(), its.flatten(0, -2), alpha=-case.rate)
            others["rows to which another trainer's gradient was already applied"] = changed[ids]
        if case.servers > 1:
            numbers = torch.tensor([case.order.index(rank) for rank in case.every_server])
            by_rank = ids - ids % case.servers + numbers[ids % case.servers]
            others["rows of servers 0, 1, …, not of the ranks in `servers`, in their order"] = (
                before[by_rank.clamp(max=_ROWS - 1)]
            )
            block = -(-_ROWS // case.servers)
            elsewhere = (ids % block * case.servers + ids // block).clamp(max=_ROWS - 1)
            others["rows cut into blocks, where neighbours lie on different servers"] = before[
                elsewhere
            ]
        if update:
            others["rows of the table before the first update"] = tables[0][ids]
        what = f"{_where(trainer, case)}, update {update}: what pull returns"
        expect_tensor(outcomes[trainer].value[update], before[ids], what, others=others)


def _expect_update(outcomes: list[Outcome], case: _Case, update: int) -> None:
    """Each server has changed its rows by the sum of all gradients, and returns that sum."""
    tables, gradients = _alone(case)
    trainers = len(case.trainers)
    for server in case.every_server:
        table, whole = outcomes[server].value[update]
        name = f"{_where(server, case)}, update {update}"
        own = case.rows_of(server)
        expect_tensor(
            table - tables[update][own],
            tables[update + 1][own] - tables[update][own],
            f"{name}: the change of the table",
            factors={
                1 / trainers: "the mean over trainers, where the sum is wanted",
                -1.0: "the gradient was added, where it is to be subtracted",
                1 / case.rate: "the learning rate is missing",
            },
            others={
                name: -case.rate * mistake[own]
                for name, mistake in _assigned(case, update, tables[update]).items()
            },
            tolerance=1e-4,
        )
        expect_tensor(
            whole,
            gradients[update][own],
            f"{name}: what serve_together returns",
            factors={-case.rate: "the change of the table, where the gradient is wanted"},
            tolerance=1e-4,
        )


def _assigned(case: _Case, update: int, table: "Tensor") -> dict[str, "Tensor"]:
    """Gradients where something is assigned that should be added."""
    import torch

    by_draw, by_trainer, elsewhere = (torch.zeros_like(table) for _ in range(3))
    for trainer in case.trainers:
        ids = case.ids(trainer, update)
        its = _gradient(trainer, table[ids]).flatten(0, -2)
        last, summed = torch.zeros_like(table), torch.zeros_like(table)
        for row, one in zip(ids.flatten().tolist(), its, strict=True):
            last[row] = one
            summed[row] += one
        by_draw += last
        by_trainer[ids.flatten()] = summed[ids.flatten()]
        elsewhere.index_add_(0, _reversed(ids).flatten(), its)
    return {
        "that of one gradient for each row, where several are to be added": by_draw,
        "that of the last trainer alone, where several have used a row": by_trainer,
        "that of rows which another RemoteTable has pulled since": elsewhere,
    }


def _expect_bytes(outcomes: list[Outcome], case: _Case) -> None:
    """What each rank sends in all updates, as the theory has it."""
    exchanges = {
        trainer: [case.exchanges(trainer, update) for update in range(_UPDATES)]
        for trainer in case.trainers
    }
    sent = []
    for server in case.every_server:
        own = [each[server] for its in exchanges.values() for each in its]
        pulled = sum(one.pulled_bytes for one in own)
        sent.append({"send-recv": (sum(one.rows > 0 for one in own), pulled)})
    for its in exchanges.values():
        own = [one for each in its for one in each]
        calls, size = sum(4 if one.rows else 2 for one in own), sum(one.pushed_bytes for one in own)
        sent.append({"send-recv": (calls, size)})
    why = "each different row travels once each way, behind a header for each request"
    expect_sent(outcomes, sent, why)


def _where(rank: int, case: _Case) -> str:
    role = "server" if rank < case.servers else "trainer"
    return f"rank {rank} of {case.ranks} ({role})"


def _two_are_late(parts: SimpleNamespace, case: _Case) -> Any:
    """On a rank: two trainers hold rows that they have pulled at different times.

    The late one pulls; the quick one makes an update, and a second one after which the third one
    pulls; then the late one pushes, and then the third one.
    """
    import torch.distributed as dist

    rank = dist.get_rank()
    if rank < case.servers:
        server = _server_of(parts, case, rank)
        server.serve_as_they_come()
        return server.table, server.staleness
    remote, (quick, late, third) = _remote_of(parts, case), case.trainers
    pulled = []
    turns = [(late, "pull"), *[(quick, "pull"), (quick, "push")] * 2]
    turns += [(third, "pull"), (late, "push"), (third, "push")]
    for (who, what), (following, _) in zip(turns, [*turns[1:], turns[-1]], strict=True):
        if rank == who:
            if what == "pull":
                pulled.append(remote.pull(case.ids(rank)))
            else:
                remote.push(_gradient(rank, pulled[-1]))
        if who != following:
            _hand_on(rank, who, following)
    remote.stop()
    return pulled


def _hand_on(rank: int, who: int, following: int) -> None:
    """`following` goes on when `who` is here, and its messages have come where they go."""
    import torch
    import torch.distributed as dist

    if rank == who:
        time.sleep(_ARRIVED_S)
        dist.send(torch.zeros(1), following)
    if rank == following:
        dist.recv(torch.zeros(1), who)


def _as_they_come(parts: SimpleNamespace) -> None:
    case = _LATE
    outcomes = on_ranks(_two_are_late, parts, case, ranks=case.ranks)
    quick, late, third = case.trainers
    table, pulled = case.table(), {late: case.table()}

    def push(trainer: int) -> None:
        its = _gradient(trainer, pulled[trainer][case.ids(trainer)])
        table.index_add_(0, case.ids(trainer), its, alpha=-case.rate)

    for update in range(2):
        pulled[quick] = table.clone()
        others = {"rows of the table before its own gradient": case.table()} if update else {}
        _expect_pulled(outcomes, case, quick, update, table, others)
        push(quick)
    pulled[third] = table.clone()
    for trainer in (late, third):
        _expect_pulled(outcomes, case, trainer, 0, pulled[trainer], {})
    push(late)
    without = table.clone()
    push(third)
    for server in case.every_server:
        found, staleness = outcomes[server].value
        own = case.rows_of(server)
        expect_tensor(
            found,
            table[own],
            f"{_where(server, case)}: the table in the end",
            others={"the table without the gradient that came last": without[own]},
            tolerance=1e-4,
        )
        right = {quick: [0, 0], late: [2], third: [1]}
        _expect_staleness(staleness, right, _where(server, case))


def _expect_pulled(
    outcomes: list[Outcome],
    case: _Case,
    trainer: int,
    number: int,
    table: "Tensor",
    others: dict[str, "Tensor"],
) -> None:
    """Pull `number` of a trainer has the rows of this table."""
    ids = case.ids(trainer)
    expect_tensor(
        outcomes[trainer].value[number],
        table[ids],
        f"{_where(trainer, case)}, update {number}: what pull returns",
        others={name: other[ids] for name, other in others.items()},
    )


def _expect_staleness(found: Any, expected: dict[int, list[int]], where: str) -> None:
    if not isinstance(found, dict) or {*found} != {*expected}:
        raise Wrong(f"{where}: staleness wants a list of whole numbers for each trainer")
    for trainer, right in expected.items():
        given = list(found[trainer])
        what = f"{where}: staleness has for trainer {trainer}"
        if len(given) != len(right):
            raise Wrong(f"{what} {len(given)} entries, expected one for each of its gradients")
        if given != right:
            raise Wrong(
                f"{what} {given}, expected the updates after its rows were pulled and before its "
                "gradient arrived"
            )


def _prepared(parts: SimpleNamespace) -> Callable[[], object]:
    """An update of 2000 draws from 10,000 rows of 64 numbers: 1 server, 1 trainer."""
    import torch
    import torch.distributed as dist

    ids = torch.randint(0, 10_000, (2000,), generator=torch.Generator().manual_seed(0))
    if dist.get_rank() == 0:
        server = parts.ParameterServer(torch.zeros(10_000, 64), 0.1, [1], _messages())
        serve: Callable[[], object] = server.serve_together
        return serve
    remote = parts.RemoteTable(64, [0], _messages())
    return lambda: remote.push(remote.pull(ids))


def _in_step_steps(cases: Sequence[tuple[str, _Case]]) -> tuple[Step, ...]:
    needs = ("RemoteTable.pull", "RemoteTable.push", "ParameterServer.serve_together")
    return tuple(Step(title, needs, partial(_check_in_step, case)) for title, case in cases)


SERVER = build(
    "server",
    title="a table on servers",
    hints=(
        "serve_together needs two loops: all trainers get their rows before the first gradient.",
        "ids.unique(return_inverse=True) has the different rows, and for each id its place among "
        "them; rows[places] undoes it.",
        "A sum by row: zeros(...).index_add_(0, places, gradients), both flattened. An assignment "
        "by index would keep one gradient only.",
        "distinct % S == s are the rows of server s, distinct // S their numbers there. Keep what "
        "each server was asked for until push.",
        "messages.announced() without a rank says who has come. A trainer whose ids you keep has "
        "rows in its hands, so what comes next from it is a gradient.",
    ),
    steps=(
        *_in_step_steps(
            (
                ("different rows, one server", _DISTINCT),
                ("rows drawn many times", _REPEATED),
                ("rows on several servers", _SERVERS),
            )
        ),
        Step(
            "as they come",
            ("RemoteTable.stop", "ParameterServer.serve_as_they_come"),
            _as_they_come,
        ),
    ),
    race=Race("an update of 2000 draws from 10,000 rows of 64, in step", _prepared),
)
