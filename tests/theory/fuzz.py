"""Calls of every public function of the theory with nasty arguments, drawn from a seed.

    python tests/theory/fuzz.py [--calls 200000] [--seed 0]

Each call begins as a probe and has one to three arguments, or parts of them, replaced. Whatever
they are, the call ends within SECONDS and BYTES, and gives numbers that are finite and not below 0,
or a ValueError or TypeError of one sentence with a remedy. test_fuzz.py makes two thousand calls.
"""

import argparse
import contextlib
import dataclasses
import inspect
import math
import os
import random
import re
import signal
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from fractions import Fraction
from typing import Any

import numpy
from probes import Given, Probe

SECONDS, BYTES = 2.0, 500 * 10**6
SEARCH_SECONDS = 6.0  # of the planner, which searches hundreds of thousands of layouts
NAN, INFINITE = math.nan, math.inf
HUGE = "x" * 10**6
NASTY = [
    *(0, -1, 1, 2, 3, 7, True, None, "", "x", "llama3-8b", HUGE, "9" * 5000, 10**9, 10**18),
    *(10**18 - 1, 10**400, -(10**400), 10**5000, NAN, INFINITE, -INFINITE, 1e308, -1e308, 5e-324),
    *(1e-320, 1e-30, 1e18, 0.1, 0.5, [], {}, (), [1], [None], ["x"], (10**400,), {"x": 1}),
    *(numpy.int64(2), numpy.float32(0.5), numpy.float64(1e308), numpy.zeros(3), Fraction(1, 3)),
    *(
        2**20,
        10**6,
        720720,
        65536,
        b"x",
        {1},
        range(3),
        1j,
        object(),
        int,
        len,
        "gpipe",
        "dualpipe",
    ),
]
# What is said to be infinite, or may be below 0, in its docstring.
INFINITE_RESULTS = (
    "layer_intensity",
    "flop_per_byte",
    "half_bytes",
    "crossover_bytes",
    "ridge_rows",
)
SIGNED = ("saved_fraction", "throughput_gain")


class Slow(Exception):
    """A call that took longer than SECONDS of the processor: others may keep it busy."""


def _stop(*_: object) -> None:
    raise Slow("over its time limit")


@contextlib.contextmanager
def limited() -> Iterator[None]:
    """Inside, BYTES more than now can be had, and an alarm says when a call takes too long.

    Where the system has neither, nothing is watched.
    """
    if sys.platform != "linux":
        yield
        return
    import resource

    with open("/proc/self/statm", encoding="ascii") as statm:
        now = int(statm.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    before = signal.signal(signal.SIGPROF, _stop)
    resource.setrlimit(resource.RLIMIT_AS, (now + BYTES, hard))
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


@dataclasses.dataclass(frozen=True)
class Call:
    """One function with its arguments."""

    name: str
    probe: Probe
    arguments: dict[str, Any]

    def fault(self) -> str | None:
        """What is wrong with what came of it, if anything."""
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                if sys.platform == "linux":
                    signal.setitimer(signal.ITIMER_PROF, self.seconds())
                try:
                    found = list(strange(self.probe.call(**self.arguments), self.name, self.probe))
                finally:
                    if sys.platform == "linux":
                        signal.setitimer(signal.ITIMER_PROF, 0)
        except (ValueError, TypeError) as error:
            return bad_sentence(str(error))
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt):
                raise
            return f"{type(error).__name__}: {error}"[:200]
        return found[0] if found else None

    def seconds(self) -> float:
        """The limit of this call."""
        return SEARCH_SECONDS if self.name.startswith("planner.") else SECONDS

    def __str__(self) -> str:
        words = ", ".join(f"{name}={shown(value)}" for name, value in self.arguments.items())
        return f"{self.name}({words})"


def bad_sentence(words: str) -> str | None:
    """Why a refusal is not one sentence with a remedy."""
    if "\n" in words or ": " not in words or len(words) > 700 or "4300 digits" in words:
        return f"is refused by {words[:200]!r}"
    return None


def shown(value: object) -> str:
    """A short text of any value."""
    try:
        text = repr(value)
    except ValueError:  # a number of more than 4300 digits
        text = "a huge int"
    text = re.sub(r"(.)\\1{30,}|\d{60,}", lambda found: f"{found[0][:5]}…", text)
    return text if len(text) < 300 else f"{text[:297]}…"


def strange(result: Any, name: str, probe: Probe, depth: int = 0) -> Iterator[str]:
    """Each number in a result that is NaN, infinite or below 0, its properties included."""
    if isinstance(result, bool | str) or result is None:
        return
    if isinstance(result, int | float):
        if isinstance(result, float) and not math.isfinite(result):
            if math.isnan(result) or result < 0 or name.split(".")[-1] not in INFINITE_RESULTS:
                yield f"{name} is {result}"
        elif result < 0 and not probe.signed and name.split(".")[-1] not in SIGNED:
            yield f"{name} is {shown(result)}"
    elif dataclasses.is_dataclass(result) and not isinstance(result, type):
        for part, value in parts(result):
            yield from strange(value, f"{name}.{part}", probe, depth + 1)
    elif isinstance(result, dict):
        for key, value in result.items():
            yield from strange(value, f"{name}.{key}", probe, depth + 1)
    elif isinstance(result, list | tuple):
        for value in result[:100]:
            yield from strange(value, name, probe, depth + 1)


def parts(record: Any) -> Iterator[tuple[str, Any]]:
    """Fields, properties and what `explain` and other methods without parameters say."""
    for leaf in dataclasses.fields(record):
        yield leaf.name, getattr(record, leaf.name)
    for name, value in vars(type(record)).items():
        if name.startswith("_") or not type(record).__module__.startswith("course_lib."):
            continue
        if isinstance(value, property) or hasattr(value, "attrname"):
            yield name, getattr(record, name)
        elif inspect.isfunction(value) and not inspect.isgeneratorfunction(value):
            its = list(inspect.signature(value).parameters.values())[1:]
            if all(one.default is not one.empty for one in its):
                yield name, getattr(record, name)()


def nasty_like(value: Any, pick: random.Random) -> Any:
    """Something nasty in place of `value`: anything, or the same record with a nasty part."""
    # What only the library makes is left as it is: it checks nothing.
    if hasattr(type(value), "__post_init__") and pick.random() < 0.7:
        leaf = pick.choice(dataclasses.fields(value)).name
        other = nasty_like(getattr(value, leaf), pick)
        with contextlib.suppress(ValueError, TypeError):
            return dataclasses.replace(value, **{leaf: other})
        return value
    if isinstance(value, list | tuple) and value and pick.random() < 0.7:
        place = pick.randrange(len(value))
        parts = list(value)
        parts[place] = nasty_like(value[place], pick)
        with contextlib.suppress(ValueError, TypeError):
            return type(value)(parts)
        return parts
    if isinstance(value, int) and not isinstance(value, bool) and pick.random() < 0.4:
        return pick.choice([2, 6, 8, 64, 840, 4096, 10**5, 2**20, 2**30, 10**9, 10**12, 10**18])
    if isinstance(value, float) and pick.random() < 0.3:
        return 10 ** pick.uniform(-31, 19)
    return pick.choice(NASTY)


def draw(probes: list[tuple[str, Probe]], pick: random.Random) -> Call:
    """A call of one of the probes with one to three parameters replaced."""
    name, probe = pick.choice(probes)
    arguments = dict(probe.base)
    for changed, change in probe.changes.items():
        if pick.random() < 0.2:
            arguments |= change.others if isinstance(change, Given) else {}
            arguments[changed] = change.value if isinstance(change, Given) else change
    parameters = list(inspect.signature(probe.call).parameters)
    for parameter in pick.sample(parameters, min(len(parameters), pick.choice([1, 1, 1, 2, 2, 3]))):
        arguments[parameter] = nasty_like(arguments.get(parameter, 1), pick)
    return Call(name, probe, arguments)


def run(calls: int, seed: int, tell: Callable[[str], None] = lambda _: None) -> list[str]:
    """Make so many calls; one line for each that went wrong, one of a kind."""
    from test_every_parameter import all_probes

    probes = all_probes()
    pick, faults = random.Random(seed), {}
    slowest, count, started = (0.0, ""), dict.fromkeys((name for name, _ in probes), 0), time.time()
    with limited():
        for _ in range(calls):
            call = draw(probes, pick)
            count[call.name] += 1
            start = time.process_time()
            fault = call.fault()
            spent = time.process_time() - start
            if spent > slowest[0]:
                slowest = (spent, shown(str(call)))
            if fault is not None:
                kind = (call.name, re.sub(r"[0-9.e+-]+|'.*?'", "", fault)[:60])
                faults.setdefault(kind, f"{fault}\n    {call}")
    tell(f"{calls:,} calls of {len(count)} functions in {time.time() - started:.0f} s")
    tell(f"slowest {slowest[0]:.2f} s: {slowest[1]}")
    tell(f"fewest calls of one function: {min(count.values())}")
    return list(faults.values())


def main() -> int:
    """Print what went wrong, how long the slowest call took, and the largest memory."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--calls", type=int, default=200_000)
    options.add_argument("--seed", type=int, default=0)
    chosen = options.parse_args()
    faults = run(chosen.calls, chosen.seed, print)
    if sys.platform == "linux":
        import resource

        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        print(f"peak memory of the process {peak / 1e6:.0f} MB")
    print("\n".join([*faults, f"{len(faults)} faults"]))
    return 1 if faults else 0


if __name__ == "__main__":
    import conftest  # noqa: F401  (where tests find each other)

    sys.exit(main())
