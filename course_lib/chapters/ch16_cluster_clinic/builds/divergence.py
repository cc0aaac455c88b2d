"""Build 16.13: the first collective in which ranks differ, from their flight records."""

import copy
import json
from collections.abc import Callable, Iterator, Mapping
from types import SimpleNamespace
from typing import Any

from course_lib.chapters.ch16_cluster_clinic.diagnosing import divergence
from course_lib.chapters.ch16_cluster_clinic.diagnosing.divergence import flights
from course_lib.checking.build import Step, build
from course_lib.checking.builds.alike import expect_kind
from course_lib.checking.builds.compare import compare_here, on_ranks
from course_lib.checking.builds.lazily import dist, torch
from course_lib.checking.builds.rows import Never, Row, expect
from course_lib.checking.helpers import described

_Records = dict[int, list[dict[str, Any]]]


def entry(
    number: int, operation: str = "all_reduce", size: int = 4, dtype: str = "Float", **more: Any
) -> dict[str, Any]:
    """One entry of a flight record, in torch's format."""
    return {
        "process_group": ["0", "default_pg"],
        "collective_seq_id": number,
        "profiling_name": f"gloo:{operation}",
        "input_sizes": [[size]],
        "input_dtypes": [dtype],
        "retired": True,
        "is_p2p": False,
    } | more


def _found(parts: SimpleNamespace, records: _Records, what: str) -> Iterator[Row]:
    """Check number and ranks of the learner's first_divergence against the course's."""
    expected = divergence.first_divergence(records)
    given = parts.first_divergence(copy.deepcopy(records))
    if expected is None:
        shown = f"collective {given[0]}" if isinstance(given, tuple) and given else described(given)
        agree = f"{what}: found {shown}, where all ranks agree: expected None"
        yield Never(given is not None, agree)
        return
    yield Never(given is None, f"{what}: returns None, and the ranks differ")
    two = isinstance(given, list | tuple) and len(given) == 2
    yield Never(not two, f"{what}: wants a number and the odd ranks, got {described(given)}")
    number, ranks = given
    expect_kind(number, int, f"{what}: the number")
    way = f"{'later' if number > expected[0] else 'earlier'} than the first that differs"
    yield Never(number != expected[0], f"{what}: found collective {number}, {way}")
    what = f"{what}: at the right collective, "
    ranks = sorted(ranks) if isinstance(ranks, set) else ranks
    expect_kind(ranks, tuple, f"{what}the tuple of odd ranks", int)
    names, other = ", ".join(map(str, sorted(ranks))), {*ranks} != {*expected[1]}
    accused = f"{what}ranks {names} are accused, though as many ranks stand on either side"
    yield Never(other and not expected[1], accused)
    yield Never(other, f"{what}the odd ranks are {names or 'none'}, expected others")


def _step(title: str, records: Callable[[], Mapping[str, _Records]]) -> Step:
    """A step that checks all records that `records()` returns, by description."""

    def rows(parts: SimpleNamespace) -> Iterator[Row]:
        for what, each in records().items():
            yield from _found(parts, each, what)

    return compare_here(title, ("first_divergence",), rows)


def _another() -> dict[str, _Records]:
    again = {rank: [entry(n) for n in range(1, 6)] for rank in range(3)}
    again[1][1], again[1][3] = entry(2, "barrier"), entry(4, "broadcast")
    return {
        "a recorded launch without a fault": flights("none"),
        "a recorded broadcast among all_reduces": flights("collective"),
        "two recorded collectives in another order": flights("order"),
        "a recorded all_reduce too many": flights("twice"),
        "a recorded barrier too many": flights("extra"),
        "a rank that differs twice": again,
    }


def _sizes() -> dict[str, _Records]:
    types = ["Double", "Float", "Float"]
    uneven = {
        f"rows of {name} that do not divide, which is allowed": {
            rank: [entry(1), entry(2, name, size=4 + rank)] for rank in range(3)
        }
        for name in divergence.ANY_SIZE
    }
    gathered = {"profiling_name": "nccl:all_gather"}
    return {
        "an all_reduce of another size": {
            rank: [entry(1), entry(2, size=4000 if rank == 2 else 4)] for rank in range(4)
        },
        "an all_reduce of another type": {
            rank: [entry(1), entry(2, dtype=kind)] for rank, kind in enumerate(types)
        },
        **uneven,
        "an all_gather of nccl, then a barrier too many": {
            rank: [
                entry(1, "all_gather", size=4 + rank) | gathered,
                entry(2, "barrier" if rank == 3 else "all_reduce"),
            ]
            for rank in range(4)
        },
    }


def _absent() -> dict[str, _Records]:
    return {
        "a recorded rank that did not come": flights("hang"),
        "a recorded rank that had finished": flights("short"),
        "two ranks that have called more than the other three": {
            rank: [entry(1)] + [entry(2)] * (rank < 2) for rank in range(5)
        },
    }


def _careful() -> dict[str, _Records]:
    camps = ("all_reduce", "barrier", "broadcast", "all_reduce", "barrier")
    ring = {rank: [entry(n) for n in range(1 + rank, 8)] for rank in range(3)}
    ring[2][-1] = entry(7, "barrier")
    sent = entry(1, "send 0->1", is_p2p=True)
    return {
        "a recorded launch whose rank 0 left an empty record": flights("shape"),
        "two ranks against two": {
            rank: [entry(1, "broadcast" if rank % 2 else "all_reduce")] for rank in range(4)
        },
        "two against two, and one against both": {
            rank: [entry(1, name)] for rank, name in enumerate(camps)
        },
        "records that keep the last few calls, and begin at different ones": ring,
        "messages between pairs of ranks, and collectives that fit": {
            rank: [entry(1), *[sent] * (2 * rank), entry(2)] for rank in range(3)
        },
        "no entries at all": {0: [], 1: []},
    }


def _recorded(odd: int) -> list[dict[str, Any]]:
    """Run on each rank: three matching collectives and a mismatched one; returns the recording."""
    from course_lib.launch import flight

    flight.switch_on()
    for _ in range(3):
        dist.all_reduce(torch.ones(4))
    # Another type with as many bytes: gloo reduces it without an error, and no rank hangs.
    kind = torch.int32 if dist.get_rank() == odd else torch.float32
    dist.all_reduce(torch.ones(4, dtype=kind))
    return flight.entries()


def _real(parts: SimpleNamespace) -> None:
    outcomes = on_ranks(_recorded, 2, ranks=3)
    records = {rank: json.loads(json.dumps(one.value)) for rank, one in enumerate(outcomes)}
    if all(records.values()):  # a torch without a recorder leaves nothing to compare
        what = "three real ranks, just now, whose last all_reduce mixed types"
        expect(("", _found(parts, records, what)))


DIVERGENCE = build(
    "divergence",
    steps=(
        _step("another collective", _another),
        _step("another size or type", _sizes),
        _step("a rank that did not come", _absent),
        _step("accuse nobody without reason", _careful),
        Step("on real ranks", ("first_divergence",), _real),
    ),
)
