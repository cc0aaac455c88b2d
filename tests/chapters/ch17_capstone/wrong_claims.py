"""Audits of runs that the check must refuse, as patches of a right one by another hand."""

from course_lib.chapters.ch17_capstone.claimed import LEAST, MOST, JudgedRun
from tests.checking.builds.patches import versions


def audit_run(parameters, tokens, hours, peak, *, source, most=MOST, least=LEAST):
    """In one expression."""
    if not source or any(not number > 0 for number in (parameters, tokens, hours, peak)):
        raise ValueError("a claim needs four quantities above 0 and a source")
    rate = parameters * tokens / hours / 600
    words = {(True, False): "impossible", (False, True): "poor"}
    verdict = words.get((rate / peak > most, rate / peak < least), "plausible")
    return JudgedRun(rate, rate / peak, verdict, source)


RIGHT = [("in one expression", audit_run)]
WRONG = versions(
    audit_run,
    lambda audit: audit,
    """
hours as seconds
- / hours / 600
+ / hours * 6
? 1 flop_per_s is .*hours have seconds
forward only
+ / hours / 1800
? 1 two thirds of 6 N D
with recomputation
+ / hours / 450
? 1 computed a second time does not count
per cent
- JudgedRun(rate, rate / peak, verdict, source)
+ JudgedRun(rate, 100 * rate / peak, verdict, source)
? 1 utilisation is .*and not per cent
a tuple
+ rate, rate / peak, verdict, source
? 1 wants a JudgedRun
always plausible
+ JudgedRun(rate, rate / peak, "plausible", source)
? 2 is 'plausible' to you.*both limits
another word
+ JudgedRun(rate, rate / peak, "good", source)
? 2 verdict wants one of
no source
+ JudgedRun(rate, rate / peak, verdict, "")
? 2 source is str '', expected the one given
its own limits
- most=MOST, least=LEAST
+ most=0.9, least=0.25
? 2 of 0.88 is 'plausible' to you
fixed limits
- (rate / peak > most, rate / peak < least)
+ (rate / peak > MOST, rate / peak < LEAST)
? 3 most=0.3 and least=0.1 is 'plausible' to you
the peak is the limit
+ (rate / peak > max(most, 1.0), rate / peak < least)
? is 'plausible' to you
a limit is outside
+ (rate / peak >= most, rate / peak < least)
? 3 is 'impossible' to you
takes everything
- raise ValueError("a claim needs four quantities above 0 and a source")
+ hours, peak = hours or 1e-9, peak or 1
? 3 parameters 0 was taken
divides by zero
+ pass
? 3 parameters 0 was taken
""",
)
