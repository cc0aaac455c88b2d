"""Build 17.12: a claim about a training run, judged by its FLOP, its hours and two limits."""

import itertools
from types import SimpleNamespace
from typing import Any

from course_lib.chapters.ch17_capstone.claimed import (
    BLOOM,
    LEAST,
    MOST,
    OTHERS,
    JudgedRun,
    audit_run,
)
from course_lib.checking.build import build
from course_lib.checking.builds.alike import expect_kind
from course_lib.checking.builds.compare import compare_here
from course_lib.checking.builds.rows import Never, Rows
from course_lib.checking.helpers import described
from course_lib.checking.races import Race
from course_lib.checking.values import kind_of_wrong
from course_lib.theory.inputs.hardware import accelerator

_A100, _H100 = (accelerator(name).peak_flop_per_s for name in ("A100-SXM-80GB", "H100-SXM"))
_Claim = tuple[float, float, float, float, str]
# Parameters, tokens, GPU-hours, peak FLOP/s, source.
_RUNS: dict[str, _Claim] = {
    **{
        run.name: (run.parameters, run.tokens, run.gpu_hours, run.peak_flop_per_s, source)
        for run, source in zip(
            (BLOOM, *OTHERS),
            ("arXiv:2211.05100", "arXiv:2302.13971", "LLaMA-2's model card", "arXiv:2407.21783"),
            strict=True,
        )
    },
    # 37 of its 671 billion parameters are active for a token.
    "DeepSeek-V3": (37e9, 14.8e12, 2.788e6, _H100, "arXiv:2412.19437"),
}
_LOG = "github.com/bigscience-workshop/bigscience, tr11-176B-ml"
_CLAIMS: dict[str, _Claim] = {
    # 600 updates of 16,384 sequences.
    "70B on 2,048 RTX 4090 in 48 s an update": (
        68.98e9,
        600 * 16_384 * 4096,
        2048 * 600 * 48 / 3600,
        165.2e12,
        "note 004",
    ),
    "BLOOM with its batch of 16 sequences": (176.247e9, 16 * 2048, 384 * 15 / 3600, _A100, _LOG),
    "BLOOM in 200,000 GPU-hours": (176.247e9, 366e9, 2e5, _A100, "an example"),
}
# Claims just inside and outside the skeleton's limits: BLOOM in so many GPU-hours.
_CLAIMS |= {
    f"BLOOM at a utilisation of {part}": (
        *(176.247e9, 366e9),
        6 * 176.247e9 * 366e9 / (part * _A100 * 3600),
        *(_A100, "an example"),
    )
    for part in (0.88, 0.86, 0.205, 0.195)
}
_WORDS = ("plausible", "impossible", "poor")


def _audited(audit: Any, claim: _Claim, **limits: float) -> Any:
    """Call `audit` with a claim: four positional quantities, and the source as a keyword."""
    *quantities, source = claim
    return audit(*quantities, source=source, **limits)


def _found(parts: SimpleNamespace, what: str, claim: _Claim, **limits: float) -> Any:
    found = _audited(parts.audit_run, claim, **limits)
    expect_kind(found, JudgedRun, f"audit_run of {what}")
    return found


def _rates(parts: SimpleNamespace) -> Rows:
    for what, claim in _RUNS.items():
        judged, reference = _found(parts, what, claim), _audited(audit_run, claim)
        for part in ("flop_per_s", "utilisation"):
            given, expected = getattr(judged, part), getattr(reference, part)
            expect_kind(given, float, f"{what}: {part}")
            if abs(given - expected) > 1e-6 * expected:
                why = _mistake(given / expected, part) or kind_of_wrong(given, expected)
                yield Never(True, f"{what}: {part} is {given:.4g}: {why}")


def _mistake(factor: float, part: str) -> str:
    """The usual mistake that gives a constant factor, in words; "" if none does."""
    known = {
        3600.0: "hours have seconds",
        1 / 3: "the backward pass is two thirds of 6 N D",
        8 / 6: "model FLOP: what is computed a second time does not count",
        1e-12: "in FLOP per second, and not in tera",
        100.0: "a fraction, and not per cent",
    }
    near = (said for one, said in known.items() if abs(factor / one - 1) < 1e-3)
    return next((f"{said} ({part})" for said in near), "")


def _verdicts(parts: SimpleNamespace) -> Rows:
    for what, claim in (_RUNS | _CLAIMS).items():
        judged = _found(parts, what, claim)
        yield from _as_judged(judged, _audited(audit_run, claim), what)
        source = f"{what}: source is {described(judged.source)}, expected the one given"
        yield Never(judged.source != claim[-1], source)


def _as_judged(judged: Any, reference: JudgedRun, what: str) -> Rows:
    wants = f"{what}: verdict wants one of {_WORDS}, got {described(judged.verdict)}"
    yield Never(judged.verdict not in _WORDS, wants)
    if judged.verdict != reference.verdict:
        said = f"{what} is {judged.verdict!r} to you, at a utilisation of {judged.utilisation:.3g}"
        yield Never(True, f"{said}: compare it with both limits")


def _limits(parts: SimpleNamespace) -> Rows:
    """Check that both limits are parameters and inclusive, and that bad quantities are refused."""
    what, claim = "BLOOM 176B", _RUNS["BLOOM 176B"]
    exactly = _audited(audit_run, claim).utilisation
    for most, least in ((0.3, 0.1), (0.9, 0.4), (exactly, exactly), (MOST, LEAST)):
        said = f"{what} with most={most:.3g} and least={least:.3g}"
        limits = {"most": most, "least": least}
        reference = _audited(audit_run, claim, **limits)
        yield from _as_judged(_found(parts, said, claim, **limits), reference, said)
    names = ("parameters", "tokens", "gpu_hours", "peak_flop_per_s")
    for (index, name), bad in itertools.product(enumerate(names), (0.0, -1.0)):
        changed = (*claim[:index], bad, *claim[index + 1 :])
        yield _refused(parts, changed, f"{name} {bad:g}")
    yield _refused(parts, (*claim[:4], ""), "an empty source")


def _refused(parts: SimpleNamespace, claim: tuple[Any, ...], what: str) -> Never:
    try:
        _audited(parts.audit_run, claim)
    except ValueError:
        return Never(False, "")
    except Exception as error:
        said = f"{type(error).__name__}: {error}"
        return Never(True, f"{what} raised {said}, expected a ValueError")
    return Never(True, f"{what} was taken, expected a ValueError: nothing can be judged by it")


def _prepared(parts: SimpleNamespace) -> Any:
    """The race: audit a thousand claims."""
    claims = list(_RUNS.values()) * 250
    return lambda: [_audited(parts.audit_run, claim) for claim in claims]


CLAIMS = build(
    "claims",
    steps=(
        compare_here("rate and utilisation", ("audit_run",), _rates),
        compare_here("the verdict", ("audit_run",), _verdicts),
        compare_here("limits, and what cannot be judged", ("audit_run",), _limits),
    ),
    race=Race("a thousand claims", _prepared, ranks=1),
)
