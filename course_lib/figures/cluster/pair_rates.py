"""The rates of pairs of ranks as a grid, slow pairs marked."""

from collections.abc import Sequence

from course_lib.figures.paper import style
from course_lib.figures.paper.drawing import Drawing
from course_lib.figures.paper.picture import Box
from course_lib.theory.inputs.units import format_number
from course_lib.theory.network.pairwise import PairTest, SlowPart

_LEFT, _TOP, _WIDE, _HIGH, _MOST = 60.0, 62.0, 300.0, 168.0, 8
_KEY = _LEFT + _WIDE + 24


def pair_rates(tests: Sequence[PairTest], found: SlowPart, title: str = "") -> Drawing:
    """One cell for each two ranks, in MB/s; `found` says which rate is slow and which is usual.

    Raises ValueError without a test, and for more than 8 ranks.
    """
    if not tests:
        raise ValueError("tests is empty: give what pairs of ranks reached")
    ranks = 1 + max(max(test.first, test.second) for test in tests)
    if ranks > _MOST:
        raise ValueError(f"tests have {ranks} ranks: draw at most {_MOST}")
    slow = [test for test in tests if _is_slow(test, found)]
    words = f"{len(slow)} of {len(tests)} tested pairs of {ranks} ranks are slow"
    drawing = Drawing(_TOP + _HIGH + 6, f"{words}: {found.explain()}.")
    drawing.write(0, 13, title, style.TITLE_PT, bold=True)
    drawing.write(0, 30, "MB/s between two ranks, one way", 9, colour=style.GREY)
    wide, high = _WIDE / ranks, _HIGH / ranks
    for rank in range(ranks):
        drawing.write(_LEFT + (rank + 0.5) * wide, _TOP - 7, f"rank {rank}", 9, "center")
        drawing.write(_LEFT - 8, _TOP + (rank + 0.5) * high + 3.5, f"rank {rank}", 9, "right")
    cells = [(a, b) for a in range(ranks) for b in range(ranks)]
    known = {pair for test in tests for pair in _both(test)}

    def box(pair: tuple[int, int]) -> Box:
        return (_LEFT + pair[1] * wide, _TOP + pair[0] * high, wide, high)

    drawing.boxes([box(pair) for pair in cells if pair[0] == pair[1]], style.PALE)
    drawing.boxes([box(p) for p in cells if p[0] != p[1] and p not in known], style.WHITE)
    for fill, several in (
        (style.MESSAGES, [test for test in tests if test not in slow]),
        (style.WARNING, slow),
    ):
        drawing.boxes([box(pair) for test in several for pair in _both(test)], fill)
        texts = []
        for test in several:
            told = format_number(test.bytes_per_s / 1e6, 3 if ranks < 6 else 2)
            for left, top, *_ in map(box, _both(test)):
                texts.append((left + wide / 2, top + high / 2 + 3.3, told))
        drawing.write_all(texts, 9 if ranks < 6 else 7.5, "center", style.ON_FILL)
    keys = [(style.MESSAGES, "fast"), (style.WARNING, "slow"), (style.WHITE, "not tested")]
    for row, (fill, told) in enumerate(keys):
        drawing.boxes([(_KEY, _TOP + 22 * row, 14, 12)], fill)
        drawing.write(_KEY + 21, _TOP + 22 * row + 10, told)
    return drawing


def _both(test: PairTest) -> tuple[tuple[int, int], tuple[int, int]]:
    return (test.first, test.second), (test.second, test.first)


def _is_slow(test: PairTest, found: SlowPart) -> bool:
    """Nearer to the slow rate than to the usual one, by factors; a rate of 0: nothing is slow."""
    return test.bytes_per_s**2 < found.slow_bytes_per_s * found.usual_bytes_per_s
