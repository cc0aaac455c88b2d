"""Rounding errors of single numbers and of sums; whether a difference can be explained by them."""

import math
from typing import Annotated

from course_lib.checked import Count, NotNegative, Positive, check_public
from course_lib.validation import whole

# Significant bits, including the implicit one. fp64, fp32, fp16, bf16: Higham and Mary 2019,
# "A New Approach to Probabilistic Rounding Error Analysis", table 1.1; tf32: NVIDIA, A100 white
# paper (10 stored); fp8: Micikevicius et al. 2022, arXiv:2209.05433, table 1.
DIGITS = {"fp64": 53, "fp32": 24, "tf32": 11, "fp16": 11, "bf16": 8, "fp8_e4m3": 4, "fp8_e5m2": 3}
# Conventions, not laws: up to 4 times the typical error counts as rounding, above 16 times as more.
# benchmarks/README.md shows their error rates.
ROUNDING_UP_TO, MORE_FROM = 4.0, 16.0
VERDICTS = ("rounding", "don't know", "more than rounding")


def unit_roundoff(dtype: Annotated[str, DIGITS]) -> float:
    """u = 2^-digits: the largest relative error of rounding a number to `dtype`.

    Source: Higham 2002, "Accuracy and Stability of Numerical Algorithms", theorem 2.2.
    """
    return 2.0 ** -DIGITS[dtype]


def typical_rounding(dtype: str) -> float:
    """u·√(1 / (8·ln 2)): the typical relative error of rounding one number to `dtype`, 0.42·u.

    This is the root mean square for log-uniform numbers: a mantissa m between 1 and 2 is off by
    u/√3, which is u/(√3·m) relative to m, and the mean of 1/m² is 3 / (8·ln 2).
    """
    return unit_roundoff(dtype) / math.sqrt(8 * math.log(2))


def sum_bound(terms: Count, dtype: str) -> float:
    """γ_n = n·u / (1 - n·u): bound on the error of a sum of n products, relative to Σ|x·y|.

    It holds for any order of summation. Raises ValueError for n·u of 1 or more, where there is no
    bound. Source: Higham 2002, section 3.1.
    """
    product = terms * unit_roundoff(dtype)
    if product >= 1:
        raise ValueError(
            f"terms {terms} times the unit roundoff of {dtype} is {product:.3g}, and from 1 on "
            "there is no bound: take fewer terms, or add them up in fp32"
        )
    return product / (1 - product)


def typical_sum_error(terms: Count, dtype: str, accumulate: str = "fp32", blocks: int = 1) -> float:
    """Typical relative error of a sum: √(n/b + b)·u of `accumulate`, and one rounding to `dtype`.

    Errors of both signs cancel, so √n replaces the n of the bound (Higham and Mary 2019,
    theorem 2.4). Summing b `blocks` separately and then adding the block sums makes the sums
    shorter (Higham 2002, section 4.2). The error is relative to the typical size of such sums.
    Random numbers give a fifth to a half of it (tests), since most roundings are smaller than u.
    Sums are never accumulated in fewer digits than `dtype` has.
    """
    whole("blocks", blocks, most=terms)
    stored, inside = unit_roundoff(dtype), unit_roundoff(accumulate)
    longest = terms if blocks == 1 else terms / blocks + blocks
    summed = math.sqrt(longest) * min(stored, inside)
    return math.hypot(summed, stored) if inside < stored else summed


def grown(error: NotNegative, roundings: Count) -> float:
    """error·√k: the accumulated error of k successive roundings of equal size and random sign."""
    return error * math.sqrt(roundings)


def verdict(measured: NotNegative, typical: Positive) -> str:
    """One of VERDICTS: compares measured / typical with ROUNDING_UP_TO and MORE_FROM.

    `measured` and `typical` are both relative differences.
    """
    if measured > MORE_FROM * typical:
        return VERDICTS[2]
    return VERDICTS[0] if measured <= ROUNDING_UP_TO * typical else VERDICTS[1]


check_public(globals())
