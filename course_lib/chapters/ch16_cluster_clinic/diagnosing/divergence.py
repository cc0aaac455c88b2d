"""The first collective in which ranks differ, from nothing but their flight records."""

import json
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files
from typing import Any

Entry = Mapping[str, Any]
# Ranks may send different sizes in these: each gives or gets what it has.
ANY_SIZE = ("all_gather", "gather", "scatter", "all_to_all")


def first_divergence(
    records: Mapping[int, Sequence[Entry]],
) -> tuple[int, tuple[int, ...]] | None:
    """The number of the first collective that is not the same on all ranks, and the odd ranks.

    `records`: the entries of torch's flight recorder by rank, all of one group. Two calls are the
    same if operation, sizes and types are (of ANY_SIZE the operation); a rank whose record ends
    before that number has called nothing there. Odd are the ranks outside the one largest camp, and
    none if there are two. None where all ranks agree, as far as all records reach back. An empty
    record says nothing, and is left out.
    """
    calls = {rank: each for rank, of in records.items() if (each := _by_number(of))}
    begin = max((min(each) for each in calls.values()), default=1)
    end = max((max(each) for each in calls.values()), default=0)
    for number in range(begin, end + 1):
        camps: dict[object, list[int]] = {}
        for rank, each in calls.items():
            camps.setdefault(each.get(number), []).append(rank)
        if len(camps) > 1:
            return number, _odd(list(camps.values()))
    return None


def _by_number(entries: Sequence[Entry]) -> dict[int, object]:
    """What the rank called, by the number of the call; messages are not counted."""
    return {e["collective_seq_id"]: _what(e) for e in entries if not e["is_p2p"]}


def _what(entry: Entry) -> object:
    operation = entry["profiling_name"].partition(":")[2]
    if operation in ANY_SIZE:
        return operation
    return operation, json.dumps([entry["input_sizes"], entry["input_dtypes"]])


def _odd(camps: list[list[int]]) -> tuple[int, ...]:
    camps.sort(key=len, reverse=True)
    if len(camps[0]) == len(camps[1]):
        return ()
    return tuple(sorted(rank for camp in camps[1:] for rank in camp))


@cache
def flights(kind: str) -> dict[int, list[dict[str, Any]]]:
    """Flight records of three ranks by rank, with that kind of fault of the demo `faults`.

    Recorded once with torch 2.13 on gloo; keys that nobody reads here were left out. Raises
    ValueError for another kind.
    """
    recorded = json.loads(files("course_lib.data").joinpath("flights.json").read_text("utf-8"))
    if kind not in recorded:
        raise ValueError(f"{kind!r} was not recorded: take one of {', '.join(recorded)}")
    return {int(rank): entries for rank, entries in recorded[kind].items()}
