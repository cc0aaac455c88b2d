"""Audits of runs that the check must refuse: (what was thought, answer, words of the refusal)."""

from dataclasses import replace

from course_lib.theory.audits import judged_run
from course_lib.theory.audits.judged_run import LEAST, MOST, JudgedRun


def _audit(six=6.0, hour=3600.0, percent=1.0, named=True, checked=True, limits=True, above=False):
    """A right audit with one thing changed."""

    def audit_run(
        parameters, tokens, gpu_hours, peak_flop_per_s, *, source, most=MOST, least=LEAST
    ):
        if checked and not (min(parameters, tokens, gpu_hours, peak_flop_per_s) > 0 and source):
            raise ValueError("nothing to judge")
        if not limits:
            most, least = MOST, LEAST
        rate = six * parameters * tokens / (max(gpu_hours, 1e-9) * hour)
        part = rate / (peak_flop_per_s or 1)
        verdict = "plausible"
        if part > most or (above and part == most):
            verdict = "impossible"
        elif part < least:
            verdict = "poor"
        return JudgedRun(rate, percent * part, verdict, source if named else "")

    return audit_run


def over_the_peak(*claim, source, most=1.0, least=LEAST):
    """Only above the peak itself is impossible."""
    return judged_run.audit_run(*claim, source=source, most=max(most, 1.0), least=least)


def always_its_limits(*claim, source, most=0.9, least=0.25):
    """Its own defaults; who gives others gets them."""
    return judged_run.audit_run(*claim, source=source, most=most, least=least)


def in_other_words(*claim, **limits):
    return replace(judged_run.audit_run(*claim, **limits), verdict="good")


def always_plausible(*claim, **limits):
    return replace(judged_run.audit_run(*claim, **limits), verdict="plausible")


def a_tuple(*claim, **limits):
    found = judged_run.audit_run(*claim, **limits)
    return found.flop_per_s, found.utilisation, found.verdict, found.source


def another_error(parameters, tokens, gpu_hours, peak_flop_per_s, **limits):
    return _audit(checked=False)(
        parameters, tokens, gpu_hours / bool(gpu_hours), peak_flop_per_s, **limits
    )


def _named(function):
    function.__name__ = "audit_run"
    return function


WRONG = [
    ("hours as seconds", _audit(hour=1.0), "step 1.*flop_per_s is .*hours have seconds"),
    ("forward only", _audit(six=2.0), "step 1.*two thirds of 6 N D"),
    ("with recomputation", _audit(six=8.0), "step 1.*computed a second time does not count"),
    ("per cent", _audit(percent=100.0), "step 1.*utilisation is .*and not per cent"),
    ("a tuple", _named(a_tuple), "step 1.*wants a JudgedRun"),
    ("always plausible", _named(always_plausible), "step 2.*is 'plausible' to you.*both limits"),
    ("another word", _named(in_other_words), "step 2.*verdict wants one of"),
    ("its own limits", _named(always_its_limits), "step 2.*of 0.88 is 'plausible' to you"),
    ("no source", _audit(named=False), "step 2.*source is str '', expected the one given"),
    ("fixed limits", _audit(limits=False), "step 3.*most=0.3 and least=0.1 is 'plausible' to you"),
    ("the peak is the limit", _named(over_the_peak), "step [23].*is 'plausible' to you"),
    ("a limit is outside", _audit(above=True), "step 3.*is 'impossible' to you"),
    ("takes everything", _audit(checked=False), "step 3.*parameters 0 was taken"),
    ("divides by zero", _named(another_error), "step 3.*parameters 0 was taken"),
]


def in_one_expression(parameters, tokens, hours, peak, source, *, most=MOST, least=LEAST):
    if not source or any(not number > 0 for number in (parameters, tokens, hours, peak)):
        raise ValueError("a claim needs four quantities above 0 and a source")
    rate = parameters * tokens / hours / 600
    words = {(True, False): "impossible", (False, True): "poor"}
    verdict = words.get((rate / peak > most, rate / peak < least), "plausible")
    return JudgedRun(rate, rate / peak, verdict, source)


RIGHT = [("in one expression", _named(in_one_expression))]
