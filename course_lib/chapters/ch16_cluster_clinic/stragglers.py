"""A slow rank: the others wait for it, so a step takes the maximum over ranks and not the mean."""

import math

from course_lib.validation import fraction, number, whole

_LEAST, _MOST, _POINTS = -8.0, 12.0, 1000  # of deviations; beyond, a normal value is not met


def straggler_factor(slower: float, compute_share: float = 1.0) -> float:
    """Time of a step over that of a healthy one, with one rank `slower` by this part in computing.

    1 + slower · compute share: with any number of ranks, since all wait for the slowest. `slower`
    0.1 is 10 % more time; `compute_share` is the part of a healthy step that the slow rank spends
    in what is slow. Raises ValueError for a part below 0, or a share that is not in (0, 1].
    """
    number("slower", slower, least=0)
    fraction("compute_share", compute_share)
    return 1 + slower * compute_share


def shared_work_factor(ranks: int, slower: float) -> float:
    """The same if work could be divided by speed, as it is not: n / (n - 1 + 1 / (1 + slower)).

    All ranks together then lose only what the slow one cannot do.
    """
    whole("ranks", ranks, most=10**9)
    number("slower", slower, least=0)
    return ranks / (ranks - 1 + 1 / (1 + slower))


def expected_slowest_s(ranks: int, mean_s: float, deviation_s: float) -> float:
    """Mean of the longest of `ranks` times that are normal and independent.

    mean + deviation · E[max of n standard normal], with E[max] the integral over x of
    1 - P(all below x) above 0, less that of P(all below x) below 0: 0.56 for 2 ranks, 1.42 for 8,
    2.34 for 64, 3.25 for 1,024. Source: David and Nagaraja 2003, "Order Statistics", section 3.1.
    Raises ValueError where a time of 0 is nearer to the mean than 3 deviations: then it is not
    normal.
    """
    whole("ranks", ranks, most=10**9)
    number("mean_s", mean_s, least=0)
    number("deviation_s", deviation_s, least=0)
    if 3 * deviation_s > mean_s:
        raise ValueError(
            f"deviation_s {deviation_s} is more than a third of mean_s {mean_s}: such times are "
            "not normal, give a smaller deviation"
        )
    return mean_s + deviation_s * _expected_maximum(ranks)


def _expected_maximum(ranks: int) -> float:
    """Of so many standard normal values: upper end - integral of P(all below x)."""
    if ranks == 1:
        return 0.0
    step = (_MOST - _LEAST) / _POINTS
    below = sum(
        math.exp(ranks * math.log1p(-math.erfc((_LEAST + point * step) / math.sqrt(2)) / 2))
        for point in range(1, _POINTS)
    )
    return _MOST - step * (below + 0.5)  # P is 0 at the lower end, and 1 at the upper
