"""Find the slow rank or link from bandwidth tests of pairs of ranks.

A pair is fast only if both ranks and the path between them are fast. So fast pairs connect ranks
into groups, and the slow pairs between groups reveal a slow rank, or a slow path between halves.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from course_lib.checked import checked
from course_lib.theory.inputs.units import format_number
from course_lib.validation import choice, number, whole

SCHEDULES = ("halving", "all")
_SLOW_SHARE = 0.6
_MOST = 1024  # most ranks of a schedule: "all" then has half a million pairs


@checked
@dataclass(frozen=True)
class PairTest:
    """The bandwidth that one pair of ranks reached, one way."""

    first: int
    second: int
    bytes_per_s: float

    def __post_init__(self) -> None:
        whole("first", self.first, least=0)
        whole("second", self.second, least=0)
        number("bytes_per_s", self.bytes_per_s, above=0)
        if self.first == self.second:
            raise ValueError(f"first and second are both {self.first}: test two ranks")


@dataclass(frozen=True)
class SlowPart:
    """The slow part; `kind` is "nothing", "ranks", "link", "cut" (between two groups) or "unknown".

    `groups`: the slow ranks, the two ends of the link, or the two sides of the cut; for "unknown"
    all slow pairs.
    """

    kind: str
    groups: tuple[tuple[int, ...], ...] = ()
    slow_bytes_per_s: float = 0.0
    usual_bytes_per_s: float = 0.0

    @checked
    def is_slow(self, test: PairTest) -> bool:
        """Whether the rate is closer to the slow one than to the usual one, by ratio."""
        return test.bytes_per_s**2 < self.slow_bytes_per_s * self.usual_bytes_per_s

    def explain(self) -> str:
        """One sentence: what is slow, and what to do next."""
        rates = f"{_rate(self.slow_bytes_per_s)} instead of {_rate(self.usual_bytes_per_s)}"
        names = [_named(group) for group in self.groups]
        if self.kind == "nothing":
            return f"no pair is slow: all reach about {_rate(self.usual_bytes_per_s)}"
        if self.kind == "ranks":
            reach = "reaches" if len(self.groups[0]) == 1 else "reach"
            return f"{names[0]} {reach} {rates} with everybody: look at port, cable and node"
        if self.kind == "link":
            ends = " and ".join(names)
            return f"only between {ends} there is {rates}: look at the way, both ends are well"
        if self.kind == "cut":
            ends = " and ".join(names)
            return f"between {ends} there is {rates}: look at what joins these groups"
        pairs = ", ".join("–".join(map(str, pair)) for pair in self.groups)
        return f"slow pairs without one cause ({pairs}): test all pairs, one after the other"


def rounds(ranks: int, schedule: str = "halving") -> list[list[tuple[int, int]]]:
    """Pairs to test, round by round; in a round every rank is in at most one pair.

    "halving" pairs rank r with the ranks at distance n/2, n/4, …, 1 (r XOR distance): log2 n
    rounds, enough to find a slow rank or half, but blind to a slow path between two ranks that are
    never paired. "all" pairs every two ranks in n - 1 rounds (n for an odd n), by the circle
    method. Raises ValueError for "halving" if the number of ranks is not a power of two.
    """
    whole("ranks", ranks, least=2, most=_MOST)
    choice("schedule", schedule, SCHEDULES)
    if schedule == "all":
        return _all_rounds(ranks)
    if ranks & (ranks - 1):
        raise ValueError(
            f"ranks {ranks} is no power of two: take schedule 'all', or 2, 4, 8 … ranks"
        )
    distances = [ranks >> step for step in range(1, ranks.bit_length())]
    return [[(r, r ^ distance) for r in range(ranks) if r < r ^ distance] for distance in distances]


@checked
def name_slow(tests: Sequence[PairTest]) -> SlowPart:
    """Find what makes pairs slow; "unknown" if the tests do not tell.

    Slow pairs are those below the largest gap in the sorted rates, if the rate below it is less
    than 60 % of the rate above. Fast pairs connect ranks into groups. If all slow pairs are between
    groups, single ranks outside one large group are slow, and two groups are a cut. One slow pair
    inside a group is a slow link. Raises ValueError for fewer than two tests.
    """
    if len(tests) < 2:
        raise ValueError(
            f"tests has {len(tests)} of two pairs or more: slow is a comparison, take 3 ranks"
        )
    by_rate = sorted(tests, key=lambda test: test.bytes_per_s)
    gaps = [
        (low.bytes_per_s / high.bytes_per_s, split)
        for split, (low, high) in enumerate(pairwise(by_rate), start=1)
    ]
    share, split = min(gaps)
    usual = by_rate[-1 - (len(by_rate) - 1) // 2].bytes_per_s
    if share >= _SLOW_SHARE:
        return SlowPart("nothing", usual_bytes_per_s=usual)
    slow, fast = by_rate[:split], by_rate[split:]
    rates = _middle(slow), _middle(fast)
    groups = _joined(tests, fast)
    group_of = {rank: group for group in groups for rank in group}
    if all(group_of[test.first] != group_of[test.second] for test in slow):
        single = tuple(sorted(group[0] for group in groups if len(group) == 1))
        if len(groups) - len(single) == 1 and single:
            return SlowPart("ranks", (single,), *rates)
        if len(groups) == 2:
            return SlowPart("cut", tuple(groups), *rates)
    elif len(slow) == 1:
        return SlowPart("link", ((slow[0].first,), (slow[0].second,)), *rates)
    pairs = sorted((min(t.first, t.second), max(t.first, t.second)) for t in slow)
    return SlowPart("unknown", tuple(pairs), *rates)


def _joined(tests: Sequence[PairTest], fast: Sequence[PairTest]) -> list[tuple[int, ...]]:
    """The connected components of the graph of fast pairs, each sorted."""
    root = {rank: rank for test in tests for rank in (test.first, test.second)}

    def find(rank: int) -> int:
        while root[rank] != rank:
            rank = root[rank]
        return rank

    for test in fast:
        root[find(test.first)] = find(test.second)
    groups: dict[int, list[int]] = {}
    for rank in sorted(root):
        groups.setdefault(find(rank), []).append(rank)
    return [tuple(group) for group in groups.values()]


def _all_rounds(ranks: int) -> list[list[tuple[int, int]]]:
    """The circle method: one seat is fixed, the others rotate by one in each round."""
    seats = list(range(ranks + ranks % 2))  # with an odd number one rank is idle in each round
    schedule = []
    for _ in range(len(seats) - 1):
        pairs = zip(seats[: len(seats) // 2], reversed(seats), strict=False)
        schedule.append([(min(p), max(p)) for p in pairs if max(p) < ranks])
        seats = [seats[0], seats[-1], *seats[1:-1]]
    return schedule


def _middle(tests: Sequence[PairTest]) -> float:
    """The median rate; `tests` are sorted."""
    return tests[len(tests) // 2].bytes_per_s


def _named(group: tuple[int, ...]) -> str:
    if len(group) == 1:
        return f"rank {group[0]}"
    return f"ranks {', '.join(map(str, group[:8]))}{' …' if len(group) > 8 else ''}"


def _rate(bytes_per_s: float) -> str:
    return (
        f"{format_number(bytes_per_s / 1e9)} GB/s"
        if bytes_per_s >= 1e9
        else f"{format_number(bytes_per_s / 1e6)} MB/s"
    )
