"""How large rounding is: of one number, of a sum, and whether a difference can be rounding."""

import math
from typing import Annotated

from course_lib.checked import Count, NotNegative, Positive, check_public
from course_lib.validation import whole

# Significant binary digits, the hidden one included. fp64, fp32, fp16, bf16: Higham and Mary 2019,
# "A New Approach to Probabilistic Rounding Error Analysis", table 1.1; tf32: NVIDIA, A100 white
# paper (10 stored); fp8: Micikevicius et al. 2022, arXiv:2209.05433, table 1.
DIGITS = {"fp64": 53, "fp32": 24, "tf32": 11, "fp16": 11, "bf16": 8, "fp8_e4m3": 4, "fp8_e5m2": 3}
# Conventions, not laws: up to 4 times the typical size is called rounding, beyond 16 times more.
# What they cost stands in benchmarks/README.md.
ROUNDING_UP_TO, MORE_FROM = 4.0, 16.0
VERDICTS = ("rounding", "don't know", "more than rounding")


def unit_roundoff(dtype: Annotated[str, DIGITS]) -> float:
    """u = 2^-digits: the largest relative error of rounding a number to `dtype`.

    Source: Higham 2002, "Accuracy and Stability of Numerical Algorithms", theorem 2.2.
    """
    return 2.0 ** -DIGITS[dtype]


def typical_rounding(dtype: str) -> float:
    """u·√(1 / (8·ln 2)): the usual relative error of rounding one number to `dtype`, 0.42·u.

    The root of the mean square, for numbers whose logarithms are spread evenly: m between 1 and 2
    is off by u/√3, relative to itself by u/(√3·m), and the mean of 1/m² is 3 / (8·ln 2).
    """
    return unit_roundoff(dtype) / math.sqrt(8 * math.log(2))


def sum_bound(terms: Count, dtype: str) -> float:
    """γ_n = n·u / (1 - n·u): no sum of n products is off by more, relative to Σ|x·y|.

    Whatever the order. Raises ValueError where n·u reaches 1, and nothing is guaranteed. Higham
    2002, section 3.1.
    """
    product = terms * unit_roundoff(dtype)
    if product >= 1:
        raise ValueError(
            f"terms {terms} times the unit roundoff of {dtype} is {product:.3g}, and from 1 on "
            "there is no bound: take fewer terms, or add them up in fp32"
        )
    return product / (1 - product)


def typical_sum_error(terms: Count, dtype: str, accumulate: str = "fp32", blocks: int = 1) -> float:
    """√(n/b + b)·u of `accumulate`, and one rounding to `dtype`: a sum's usual relative error.

    Errors of both signs cancel, so that √n stands where the bound has n (Higham and Mary 2019,
    theorem 2.4); b `blocks` that are added up one by one, and then together, have shorter sums
    (Higham 2002, section 4.2). Relative to the size that such sums usually have. Random numbers
    give a fifth to a half of it (tests), since not every rounding is as large as u. Sums are never
    accumulated in fewer digits than `dtype` has.
    """
    whole("blocks", blocks, most=terms)
    stored, inside = unit_roundoff(dtype), unit_roundoff(accumulate)
    longest = terms if blocks == 1 else terms / blocks + blocks
    summed = math.sqrt(longest) * min(stored, inside)
    return math.hypot(summed, stored) if inside < stored else summed


def grown(error: NotNegative, roundings: Count) -> float:
    """error·√k: what k roundings of one size leave, one after the other, of random signs."""
    return error * math.sqrt(roundings)


def verdict(measured: NotNegative, typical: Positive) -> str:
    """One of VERDICTS, by measured / typical against ROUNDING_UP_TO and MORE_FROM.

    Both are relative differences.
    """
    if measured > MORE_FROM * typical:
        return VERDICTS[2]
    return VERDICTS[0] if measured <= ROUNDING_UP_TO * typical else VERDICTS[1]


check_public(globals())
