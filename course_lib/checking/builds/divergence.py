"""Build 16.13: the first collective in which ranks differ, from their flight records."""

import copy
import json
from types import SimpleNamespace
from typing import Any

from course_lib.checking.build import Step, build
from course_lib.checking.builds.ranks import on_ranks
from course_lib.checking.exercises import Wrong
from course_lib.checking.helpers import described
from course_lib.diagnosing import divergence
from course_lib.diagnosing.divergence import flights

_Records = dict[int, list[dict[str, Any]]]


def entry(
    number: int, operation: str = "all_reduce", size: int = 4, dtype: str = "Float", **more: Any
) -> dict[str, Any]:
    """One entry of a flight record, as torch writes it."""
    return {
        "process_group": ["0", "default_pg"],
        "collective_seq_id": number,
        "profiling_name": f"gloo:{operation}",
        "input_sizes": [[size]],
        "input_dtypes": [dtype],
        "retired": True,
        "is_p2p": False,
    } | more


def _compare(parts: SimpleNamespace, records: _Records, what: str) -> None:
    """Raise Wrong unless number and ranks are those of the course's own version."""
    right = divergence.first_divergence(records)
    given = parts.first_divergence(copy.deepcopy(records))
    if right is None:
        if given is not None:
            raise Wrong(f"{what}: found {_told(given)}, where all ranks agree: expected None")
        return
    if given is None:
        raise Wrong(f"{what}: returns None, and the ranks differ")
    if not isinstance(given, list | tuple) or len(given) != 2:
        raise Wrong(f"{what}: wants a number and the odd ranks, got {described(given)}")
    number, ranks = given
    if isinstance(number, bool) or not isinstance(number, int):
        raise Wrong(f"{what}: the number wants to be an int, got {described(number)}")
    if number != right[0]:
        way = "later" if number > right[0] else "earlier"
        raise Wrong(f"{what}: found collective {number}, {way} than the first that differs")
    _compare_ranks(ranks, right[1], f"{what}: at the right collective")


def _compare_ranks(ranks: Any, right: tuple[int, ...], what: str) -> None:
    if not isinstance(ranks, list | tuple | set) or any(not isinstance(r, int) for r in ranks):
        raise Wrong(f"{what}, the odd ranks want to be a tuple of ranks, got {described(ranks)}")
    if set(ranks) == set(right):
        return
    if not right:
        raise Wrong(
            f"{what}, ranks {_named(ranks)} are accused, though as many ranks stand on either side"
        )
    raise Wrong(f"{what}, the odd ranks are {_named(ranks) or 'none'}, expected others")


def _told(given: Any) -> str:
    return f"collective {given[0]}" if isinstance(given, tuple) and given else described(given)


def _named(ranks: Any) -> str:
    return ", ".join(map(str, sorted(ranks)))


def _another(parts: SimpleNamespace) -> None:
    _compare(parts, flights("none"), "a recorded launch without a fault")
    _compare(parts, flights("collective"), "a recorded broadcast among all_reduces")
    _compare(parts, flights("order"), "two recorded collectives in another order")
    _compare(parts, flights("twice"), "a recorded all_reduce too many")
    _compare(parts, flights("extra"), "a recorded barrier too many")
    again = {rank: [entry(n) for n in range(1, 6)] for rank in range(3)}
    again[1][1], again[1][3] = entry(2, "barrier"), entry(4, "broadcast")
    _compare(parts, again, "a rank that differs twice")


def _sizes(parts: SimpleNamespace) -> None:
    sizes = {rank: [entry(1), entry(2, size=4000 if rank == 2 else 4)] for rank in range(4)}
    _compare(parts, sizes, "an all_reduce of another size")
    types = {
        rank: [entry(1), entry(2, dtype="Double" if not rank else "Float")] for rank in (0, 1, 2)
    }
    _compare(parts, types, "an all_reduce of another type")
    for name in divergence.ANY_SIZE:
        uneven = {rank: [entry(1), entry(2, name, size=4 + rank)] for rank in range(3)}
        _compare(parts, uneven, f"rows of {name} that do not divide, which is allowed")
    nccl = {
        rank: [
            entry(1, "all_gather", size=4 + rank) | {"profiling_name": "nccl:all_gather"},
            entry(2, "barrier" if rank == 3 else "all_reduce"),
        ]
        for rank in range(4)
    }
    _compare(parts, nccl, "an all_gather of nccl, then a barrier too many")


def _absent(parts: SimpleNamespace) -> None:
    _compare(parts, flights("hang"), "a recorded rank that did not come")
    _compare(parts, flights("short"), "a recorded rank that had finished")
    two = {rank: [entry(1)] + [entry(2)] * (rank < 2) for rank in range(5)}
    _compare(parts, two, "two ranks that have called more than the other three")


def _careful(parts: SimpleNamespace) -> None:
    _compare(parts, flights("shape"), "a recorded launch whose rank 0 left an empty record")
    tie = {rank: [entry(1, "broadcast" if rank % 2 else "all_reduce")] for rank in range(4)}
    _compare(parts, tie, "two ranks against two")
    camps = ("all_reduce", "barrier", "broadcast", "all_reduce", "barrier")
    three = {rank: [entry(1, name)] for rank, name in enumerate(camps)}
    _compare(parts, three, "two against two, and one against both")
    ring = {rank: [entry(n) for n in range(1 + rank, 8)] for rank in range(3)}
    ring[2][-1] = entry(7, "barrier")
    _compare(parts, ring, "records that keep the last few calls, and begin at different ones")
    messages = {
        rank: [entry(1), *[entry(1, "send 0->1", is_p2p=True)] * (2 * rank), entry(2)]
        for rank in range(3)
    }
    _compare(parts, messages, "messages between pairs of ranks, and collectives that fit")
    _compare(parts, {0: [], 1: []}, "no entries at all")


# --- on real ranks ------------------------------------------------------------------------------


def _recorded(odd: int) -> list[dict[str, Any]]:
    """On a rank: three collectives that fit and one that does not; what its recorder has."""
    import torch
    import torch.distributed as dist

    from course_lib.launch import flight

    flight.switch_on()
    for _ in range(3):
        dist.all_reduce(torch.ones(4))
    # As many bytes of another type: gloo adds them up without a word, and no rank waits.
    kind = torch.int32 if dist.get_rank() == odd else torch.float32
    dist.all_reduce(torch.ones(4, dtype=kind))
    return flight.entries(lines=False)


def _real(parts: SimpleNamespace) -> None:
    outcomes = on_ranks(_recorded, 2, ranks=3)
    records = {rank: json.loads(json.dumps(one.value)) for rank, one in enumerate(outcomes)}
    if all(records.values()):  # a torch without a recorder leaves nothing to compare
        _compare(parts, records, "three real ranks, just now, whose last all_reduce mixed types")


DIVERGENCE = build(
    "divergence",
    title="the first divergence",
    hints=(
        "For each rank a dict from collective_seq_id to what was called. Then go through the "
        "numbers, from the first that all records have to the last that any has.",
        "dict.get(number) is None for a rank that did not come: that is a camp as well.",
        "Group the ranks by what they called: a dict from the call to a list of ranks. One group: "
        "go on. Lists can't be keys of a dict; tuple(…) or str(…) of them can.",
        "profiling_name is 'gloo:all_reduce' or 'nccl:all_reduce'. Sizes and types count, except "
        "in operations of ANY_SIZE.",
        "The largest group is right if no other is as large; otherwise nobody is odd: ().",
    ),
    steps=(
        Step("another collective", ("first_divergence",), _another),
        Step("another size or type", ("first_divergence",), _sizes),
        Step("a rank that did not come", ("first_divergence",), _absent),
        Step("accuse nobody without reason", ("first_divergence",), _careful),
        Step("on real ranks", ("first_divergence",), _real),
    ),
)
