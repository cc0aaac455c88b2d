"""What hiding messages behind computing saves, and what it costs: one model for all axes.

A message under way takes from the computing beside it whatever is scarcer: the multiprocessors
(SMs) that its kernel holds, or the memory bandwidth that its bytes use. In t seconds it sends B
bytes and takes

    taken = max(message_sms · t, message_touches · B / memory bandwidth), at most t.

So hiding it saves t - taken. All axes share one window: they hide one after another, in
`HIDING_ORDER`, each behind the computing that the axes before it have left. Messages that may hide,
t in all, beside C seconds of computing thus take max(t, C + taken).

Measured by Lee et al. 2025, arXiv:2507.03114, on nodes of 4 A100, H100, MI210 and MI250: computing
gets 18.9 % longer beside messages, and one after the other takes 10.2 % longer than side by side.
So a second of hidden messages takes 0.6 s from computing there; the formula says 0.4 to 0.5 on
NVLink. On a slow network it is message_sms.
"""

from dataclasses import dataclass
from typing import Any

from course_lib.checked import checked
from course_lib.theory.step.assumptions import Assumptions
from course_lib.validation import choice, number

# What is small and hides in every layer goes first; dp has what is left of its window.
HIDING_ORDER = ("cp", "tp", "ep", "pp", "dp")


@dataclass(frozen=True)
class Hideable:
    """Messages of one axis that may hide: seconds, bytes sent in them, and the window.

    `window_s`: computing to hide behind. Numbers, or numpy's arrays of them. Raises ValueError for
    numbers below 0.
    """

    seconds: Any
    sent_bytes: Any
    window_s: Any

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if isinstance(value, float | int):
                number(name, value, least=0)

    @checked
    def saved_s(self, assumptions: Assumptions, axis: str, memory_bytes_per_s: float) -> Any:
        """By how much the step gets shorter because messages of `axis` hide.

        overlap · (seconds - taken), but never more than the window: see above. Raises ValueError
        for an unknown axis and a bandwidth that is not positive.
        """
        choice("axis", axis, HIDING_ORDER)
        number("memory_bytes_per_s", memory_bytes_per_s, above=0)
        held = assumptions.message_sms * self.seconds
        moved = assumptions.message_touches * self.sent_bytes / memory_bytes_per_s
        gained = self.seconds - _least(self.seconds, -_least(-held, -moved))
        return _least(assumptions.overlap[axis] * gained, self.window_s)


def _least(one: Any, other: Any) -> Any:
    """The smaller of two numbers; of two of numpy's arrays place by place."""
    return min(one, other) if isinstance(one, (int, float)) else one.clip(None, other)
