"""Spoils right answers: in every place that an answer has, something that fits nowhere."""

import inspect
import itertools

import numpy as np
import torch

from course_lib.checking.helpers import plain

NONSENSE = {
    "a text": "text",
    "an object": object(),
    "an empty list": [],
    "an empty dict": {},
    "a list of a list": [[]],
    "True": True,
    "NaN": float("nan"),
    "infinity": float("-inf"),
    "a huge number": -(10**400),
    "a complex number": 1j,
    "bytes": b"x",
    "an array": np.array([[1.5, -1.5]]),
    "an empty tensor": torch.tensor([]),
    "the function len": len,
    "the class int": int,
    "a function": lambda: 0,
}


def spoiled(answer):
    """(what was done, the answer after it), for each nonsense in each place of a right answer.

    What was done to the results of a function is known once the function was called.
    """
    for name, value in NONSENSE.items():
        if type(value) is not type(answer) or value is not True:
            yield name, value
    yield from _spoiled_parts(answer)
    if isinstance(answer, type):
        yield from _spoiled_classes(answer)
    elif inspect.isfunction(answer):
        yield from _spoiled_functions(answer)


def _spoiled_parts(answer):
    if isinstance(answer, torch.Tensor):
        yield "flattened, and one element more", torch.cat([answer.flatten(), torch.ones(1)])
        yield "of bools", answer.isnan()
        yield "of NaN", answer * float("nan")
    if isinstance(answer, list | tuple):
        for place in _places(len(answer)):
            for what, other in spoiled(answer[place]):
                changed = type(answer)([*answer[:place], other, *answer[place + 1 :]])
                yield f"[{place}]: {what}", changed
        yield "one part less", answer[:-1]
        yield "one part more", type(answer)([*answer, *answer[:1], 1][: len(answer) + 1])
    if isinstance(answer, dict):
        for key, part in answer.items():
            for what, other in spoiled(part):
                yield f"[{key!r}]: {what}", answer | {key: other}
            yield f"without {key!r}", {k: v for k, v in answer.items() if k != key}
        yield "keys 1, 2, 3", {place: part for place, part in enumerate(answer.values())}


def _places(length):
    """All places of a short list; the first, the middle and the last of a long one."""
    return range(length) if length <= 6 else (0, length // 2, length - 1)


def _spoiled_functions(function):
    """Functions with other arguments, and those that return a spoiled result from a call on."""
    yield "takes no arguments", lambda: 0
    yield "takes too many", lambda a, b, c, d, e, f, g, h, i, j, k: 0
    yield "does nothing", lambda *_: 0
    for call in range(5):
        changes = itertools.count()
        spoiler = _Spoiler(function, call, next(changes))
        while True:
            yield spoiler, spoiler
            if not spoiler.more:
                break
            spoiler = _Spoiler(function, call, next(changes))


def untouched(answer):
    """True for a function whose results could not be spoiled, since it returned nothing."""
    return isinstance(answer, _Spoiler) and not answer.what


class _Spoiler:
    """The function, but from its call number `call` on the result has the `change`-th fault."""

    def __init__(self, function, call, change):
        self.function, self.call, self.change = function, call, change
        self.calls, self.more, self.what = 0, False, ""

    def __call__(self, *args):
        result = self.function(*args)
        self.calls += 1
        # What returns nothing is judged by what it does.
        if self.calls <= self.call or result is None:
            return result
        faults = itertools.islice(spoiled(result), self.change, None)
        self.what, fault = next(faults)
        self.more |= next(faults, None) is not None
        return fault

    def __str__(self):
        return f"result {self.call}: {self.what}"


def _spoiled_classes(answer):
    yield "a class that takes no arguments", type("Empty", (), {})
    yield "a class with nothing of its own", type("Bare", answer.__mro__[1:2], {})
    for name, value in NONSENSE.items():
        for method in ("forward", "backward"):
            if method in vars(answer):
                other = staticmethod(lambda *_, value=value, **__: value)
                yield f"{method} gives {name}", type("Changed", (answer,), {method: other})


def other_forms(answer):
    """The right answer in forms that a check may take or refuse, but must not stumble over."""
    if isinstance(answer, list | tuple):
        other = tuple if isinstance(answer, list) else list
        yield f"a {other.__name__}", other(answer)
        yield "its texts", [str(part) for part in answer]
        if all(isinstance(part, int | float) for part in answer):
            yield "an array", np.array(answer, dtype=float)
            yield "a tensor", torch.tensor(answer, dtype=torch.float64)
    elif isinstance(answer, dict):
        yield "its values", list(answer.values())
    elif inspect.isfunction(answer):
        yield "plain results", lambda *args: plain(answer(*args))
        yield "results in a list", lambda *args: [answer(*args)]
    elif isinstance(answer, int | float):
        yield "a tensor", torch.tensor(answer)
        yield "a text", str(answer)
