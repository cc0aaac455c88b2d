"""The first collective in which ranks differ, from their flight records alone."""

import json
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files
from typing import Any

Entry = Mapping[str, Any]
# Collectives in which the sizes may differ between ranks.
ANY_SIZE = ("all_gather", "gather", "scatter", "all_to_all")


def first_divergence(
    records: Mapping[int, Sequence[Entry]],
) -> tuple[int, tuple[int, ...]] | None:
    """(number, odd ranks) of the first collective that differs between ranks; None if all agree.

    `records`: the entries of torch's flight recorder by rank, all of one group. Two calls are equal
    if operation, sizes and dtypes are (for ANY_SIZE the operation alone); a rank whose record ends
    earlier made no such call. The odd ranks are those outside the largest set of ranks with equal
    calls; the tuple is empty if two sets are largest. Only numbers that all records reach back to
    are compared, and empty records are ignored.
    """
    calls = {rank: each for rank, entries in records.items() if (each := _by_number(entries))}
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
    """The rank's collectives by sequence number; point-to-point messages are left out."""
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
    """Stored flight records of three ranks, by rank, for one `kind` of fault of the demo `faults`.

    They come from torch 2.13 on gloo, without the keys that are not used here. Raises ValueError
    for a kind that was not recorded.
    """
    recorded = json.loads(files("course_lib.data").joinpath("flights.json").read_text("utf-8"))
    if kind not in recorded:
        raise ValueError(f"{kind!r} was not recorded: take one of {', '.join(recorded)}")
    return {int(rank): entries for rank, entries in recorded[kind].items()}
