"""Build 14.10: a table on servers; trainers pull its rows and push their gradients."""

import copy
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from course_lib.chapters.ch14_parameter_servers.exchanges import RowExchange
from course_lib.checking.build import build
from course_lib.checking.builds.alike import expect_alike, expect_kind
from course_lib.checking.builds.compare import Case, Place, compare
from course_lib.checking.builds.lazily import dist, later, torch
from course_lib.checking.builds.rows import Must, Rows, Sends
from course_lib.checking.races import Race

_scratch = later("course_lib.scratch.parameter_server")
_wire = later("course_lib.measure.wire")
_ROWS, _UPDATES = 11, 2
_ARRIVED_S = 0.03  # enough for a message to arrive


@dataclass(frozen=True)
class _Case(Case):
    """The rows that each trainer uses in the first update, as nested lists of any shape.

    The first ranks are servers; row i of the table is on rank `order[i % servers]`.
    """

    drawn: tuple[Any, ...]
    order: tuple[int, ...] = (0,)
    width: int = 3
    rate: float = 0.5
    ranks: int = field(default=3, kw_only=True)

    def who(self, rank: int, _line: Sequence[int]) -> str:
        role = "server" if rank < self.servers else "trainer"
        return f"rank {rank} of {self.ranks} ({role})"

    @property
    def servers(self) -> int:
        return len(self.order)

    def rows_of(self, server: int) -> slice:
        """The rows of the table that the server with this rank stores."""
        return slice(self.order.index(server), None, self.servers)

    @property
    def trainers(self) -> range:
        return range(self.servers, self.ranks)

    def ids(self, trainer: int, update: int = 0) -> Any:
        """Row numbers that this trainer uses; they and their shape differ between updates."""
        ids = torch.tensor(self.drawn[trainer - self.servers])
        return ((3 * ids + 2) % _ROWS).flatten() if update else ids

    def exchanges(self, trainer: int, update: int) -> list[RowExchange]:
        """A trainer's exchange with each server, by server rank."""
        rows = set(self.ids(trainer, update).flatten().tolist())
        owners = [self.order[row % self.servers] for row in rows]
        return [RowExchange(owners.count(rank), self.width) for rank in range(self.servers)]

    def sent(self, rank: int) -> tuple[int, int]:
        """Predicted number of messages and bytes that a rank sends in all updates."""
        updates = range(_UPDATES)
        if rank in self.trainers:
            own = [one for update in updates for one in self.exchanges(rank, update)]
            return sum(4 if one.rows else 2 for one in own), sum(one.pushed_bytes for one in own)
        own = [
            self.exchanges(trainer, update)[rank] for trainer in self.trainers for update in updates
        ]
        return sum(one.rows > 0 for one in own), sum(one.pulled_bytes for one in own)

    def table(self) -> Any:
        """The initial table, (11, width)."""
        return torch.arange(1.0, 1 + _ROWS * self.width).view(_ROWS, self.width)


_DISTINCT = _Case(([7, 0, 4], [4, 2, 1, 9]))
_REPEATED = _Case(([[4, 0], [9, 4]], [[2, 4, 2], [2, 5, 1]]))
_SERVERS = _Case(([[4, 0], [10, 4]], [[3, 5], [8, 3], [3, 1]]), (1, 0, 2), 2, 0.25, ranks=5)
_LATE = _Case(([1, 4, 2], [4, 1], [2, 1]), (1, 0), ranks=5)


def _gradient(trainer: int, rows: Any) -> Any:
    """A trainer's gradient of the rows that it pulled, with different numbers everywhere."""
    return 10.0**trainer + torch.arange(float(rows.numel())).view_as(rows) + 0.1 * rows


def _server_of(parts: SimpleNamespace, case: _Case, rank: int) -> Any:
    own = case.table()[case.rows_of(rank)].clone()
    return parts.ParameterServer(
        own, case.rate, list(case.trainers), _scratch.Messages(dist.group.WORLD)
    )


def _remote_of(parts: SimpleNamespace, case: _Case) -> Any:
    return parts.RemoteTable(case.width, list(case.order), _scratch.Messages(dist.group.WORLD))


def _pull_elsewhere(parts: SimpleNamespace, case: _Case, ids: Any) -> None:
    """Pull rows from a second table, whose messages go nowhere, between a pull and its push."""

    class Nowhere(_scratch.Messages):  # type: ignore[name-defined]
        def announce(self, rows: int, to: int) -> None:
            pass

        def send(self, tensor: Any, to: int) -> None:
            pass

        def receive_rows(self, count: int, width: int, source: int) -> Any:
            del source  # callers may pass it by name
            return torch.zeros(count, width)

    other = parts.RemoteTable(case.width, list(case.order), Nowhere(dist.group.WORLD))
    other.pull(_reversed(ids))


def _reversed(ids: Any) -> Any:
    return ids.flip(list(range(ids.dim())))


def _run_in_step(parts: SimpleNamespace, case: _Case, _: Any) -> Any:
    """Run the updates: a server's table and gradient, or a trainer's rows, of each; traffic."""
    rank, results = dist.get_rank(), list[Any]()
    with _wire.log_wire() as wire:
        if rank < case.servers:
            server = _server_of(parts, case, rank)
            for _ in range(_UPDATES):
                whole = server.serve_together()
                results.append(copy.deepcopy((server.table, whole)))  # the server may reuse both
            return results, wire
        remote = _remote_of(parts, case)
        for update in range(_UPDATES):
            ids = case.ids(rank, update)
            rows = remote.pull(ids)
            results.append(rows)
            if getattr(rows, "shape", None) != (*ids.shape, case.width):
                rows = case.table()[ids]  # a wrong answer: push rows that fit, or a server waits
            _pull_elsewhere(parts, case, ids)
            remote.push(_gradient(rank, rows))
    return results, wire


def _one_process(case: _Case) -> tuple[list[Any], list[Any]]:
    """In one process: the table before each update and at the end, and each update's gradient."""
    tables, gradients = [case.table()], []
    for update in range(_UPDATES):
        whole = torch.zeros(_ROWS, case.width)
        for trainer in case.trainers:
            ids = case.ids(trainer, update)
            gradient = _gradient(trainer, tables[-1][ids])
            whole.index_add_(0, ids.flatten(), gradient.flatten(0, -2))
        gradients.append(whole)
        tables.append(tables[-1] - case.rate * whole)
    return tables, gradients


def _expect_in_step(outcome: Any, place: Place) -> Rows:
    """Check, update by update, the rows that trainers pull and then the servers' changes."""
    case, rank, (each, wire) = place.case, place.rank, outcome
    tables, gradients = _one_process(case)
    for update in range(_UPDATES):
        if rank in case.trainers:
            yield _expect_pulled(each[update], case, rank, update, tables)
            yield from (None, None)
        else:
            yield None
            yield from _expect_changed(each[update], case, rank, update, tables, gradients[update])
    yield Sends(
        wire,
        {"send-recv": case.sent(rank)},
        "each different row travels once each way, behind a header for each request",
    )


def _expect_pulled(rows: Any, case: _Case, trainer: int, update: int, tables: list[Any]) -> Must:
    """Each trainer must get the rows of the table as they were before the update."""
    before, ids = tables[update], case.ids(trainer, update)
    others = {"the rows in rising order of their numbers": before[ids.unique()]}
    if trainer > case.servers:  # another trainer's gradient may have changed them already
        first, changed = case.ids(case.servers, update), before.clone()
        gradient = _gradient(case.servers, before[first])
        changed.index_add_(0, first.flatten(), gradient.flatten(0, -2), alpha=-case.rate)
        others["rows to which another trainer's gradient was already applied"] = changed[ids]
    if case.servers > 1:
        numbers = torch.tensor([case.order.index(rank) for rank in range(case.servers)])
        by_rank = ids - ids % case.servers + numbers[ids % case.servers]
        block = -(-_ROWS // case.servers)
        by_block = ids % block * case.servers + ids // block
        for words, elsewhere in (
            ("of servers 0, 1, …, not of the ranks in `servers`, in their order", by_rank),
            ("cut into blocks, where neighbours lie on different servers", by_block),
        ):
            others[f"rows {words}"] = before[elsewhere.clamp(max=_ROWS - 1)]
    if update:
        others["rows of the table before the first update"] = tables[0][ids]
    return Must(f", update {update}: what pull returns", rows, before[ids], others)


def _expect_changed(
    result: Any, case: _Case, rank: int, update: int, tables: list[Any], gradient: Any
) -> Rows:
    """Each server must change its rows by the sum of all gradients, and return that sum."""
    (table, whole), own, trainers = result, case.rows_of(rank), len(case.trainers)
    before, after = tables[update][own], tables[update + 1][own]
    mistakes = _wrong_gradients(case, update, tables[update])
    factors = {
        1 / trainers: "the mean over trainers, where the sum is wanted",
        -1.0: "the gradient was added, where it is to be subtracted",
        1 / case.rate: "the learning rate is missing",
    }
    others = {words: -case.rate * mistake[own] for words, mistake in mistakes.items()}
    what = f", update {update}: the change of the table"
    yield Must(what, table - before, after - before, others, factors, 1e-4)
    factors = {-case.rate: "the change of the table, where the gradient is wanted"}
    what = f", update {update}: what serve_together returns"
    yield Must(what, whole, gradient[own], {}, factors, 1e-4)


def _wrong_gradients(case: _Case, update: int, table: Any) -> dict[str, Any]:
    """Wrong gradients, from assigning what should be added, by their explanation."""
    by_draw, by_trainer, elsewhere = (torch.zeros_like(table) for _ in range(3))
    for trainer in case.trainers:
        ids = case.ids(trainer, update)
        rows = _gradient(trainer, table[ids]).flatten(0, -2)
        last, summed = torch.zeros_like(table), torch.zeros_like(table)
        for row, row_gradient in zip(ids.flatten().tolist(), rows, strict=True):
            last[row] = row_gradient
            summed[row] += row_gradient
        by_draw += last
        by_trainer[ids.flatten()] = summed[ids.flatten()]
        elsewhere.index_add_(0, _reversed(ids).flatten(), rows)
    return {
        "that of one gradient for each row, where several are to be added": by_draw,
        "that of the last trainer alone, where several have used a row": by_trainer,
        "that of rows which another RemoteTable has pulled since": elsewhere,
    }


def _run_late(parts: SimpleNamespace, case: _Case, _: Any) -> Any:
    """Run asynchronous updates in which two trainers push gradients of outdated rows.

    The late trainer pulls; the quick one makes two updates; the third one pulls; then the late one
    pushes, and then the third one.
    """
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
    """Let rank `following` continue once rank `who` is done and its messages have arrived."""
    if rank == who:
        time.sleep(_ARRIVED_S)
        dist.send(torch.zeros(1), following)
    if rank == following:
        dist.recv(torch.zeros(1), who)


def _expect_late(outcome: Any, place: Place) -> Rows:
    case, rank = place.case, place.rank
    quick, late, third = case.trainers
    table, pulled = case.table(), {late: [case.table()], quick: [], third: []}

    def push(trainer: int) -> None:
        gradient = _gradient(trainer, pulled[trainer][-1][case.ids(trainer)])
        table.index_add_(0, case.ids(trainer), gradient, alpha=-case.rate)

    for _ in range(2):
        pulled[quick].append(table.clone())
        push(quick)
    pulled[third].append(table.clone())
    push(late)
    without = table.clone()
    push(third)
    if rank != quick:
        yield from (None, None)  # the quick trainer's rows are checked first
    if rank in case.trainers:
        for update, (rows, right) in enumerate(zip(outcome, pulled[rank], strict=True)):
            ids = case.ids(rank)
            others = {"rows of the table before its own gradient": case.table()[ids]}
            what = f", update {update}: what pull returns"
            yield Must(what, rows, right[ids], others if update else {})
        return
    yield None
    table_found, staleness = outcome
    own = case.rows_of(rank)
    others = {"the table without the gradient that came last": without[own]}
    yield Must("the table in the end", table_found, table[own], others, tolerance=1e-4)
    expect_kind(staleness, dict, "staleness")
    for trainer, right in {quick: [0, 0], late: [2], third: [1]}.items():
        expect_alike(staleness.get(trainer), right, f"staleness of trainer {trainer}", _LATENESS)


_MEANT = "expected the updates after its rows were pulled and before its gradient arrived"
_LATENESS = {"part 1": _MEANT, "part 2": _MEANT}


def _race_part(parts: SimpleNamespace) -> Callable[[], object]:
    """A race between one server and one trainer."""
    messages = later("course_lib.scratch.parameter_server").Messages(dist.group.WORLD)
    if dist.get_rank() == 0:
        server = parts.ParameterServer(torch.zeros(10_000, 64), 0.1, [1], messages)
        serve: Callable[[], object] = server.serve_together
        return serve
    ids = torch.randint(0, 10_000, (2000,), generator=torch.Generator().manual_seed(0))
    remote = parts.RemoteTable(64, [0], messages)
    return lambda: remote.push(remote.pull(ids))


SERVER = build(
    "server",
    steps=(
        *(
            compare(
                title,
                ("RemoteTable.pull", "RemoteTable.push", "ParameterServer.serve_together"),
                _run_in_step,
                _expect_in_step,
                [case],
            )
            for title, case in (
                ("different rows, one server", _DISTINCT),
                ("rows drawn many times", _REPEATED),
                ("rows on several servers", _SERVERS),
            )
        ),
        compare(
            "as they come",
            ("RemoteTable.stop", "ParameterServer.serve_as_they_come"),
            _run_late,
            _expect_late,
            [_LATE],
        ),
    ),
    race=Race("an update of 2000 draws from 10,000 rows of 64, in step", _race_part),
)
