"""Every parameter of every public function changes some result.

The calls are in parameter_probes.py. A function, class or parameter that is missing there fails.
"""

import dataclasses
import inspect
import math
from importlib import import_module

import pytest
from parameter_probes import PROBES, RECORDS, SAME_ON_ALL_STAGES, Given, Probe

from course_lib import theory, validation


def public_callables():
    """Functions, dataclasses and methods with parameters, of the modules that theory names."""
    for module in theory.__all__:
        loaded = import_module(f"course_lib.theory.{module}")
        for name, value in vars(loaded).items():
            if name.startswith("_") or getattr(value, "__module__", None) != loaded.__name__:
                continue
            if inspect.isclass(value):
                yield from public_methods(f"{module}.{name}", value)
            if inspect.isfunction(value) or is_record(value):
                yield f"{module}.{name}", list(inspect.signature(value).parameters)


def is_record(value):
    """A dataclass or a named tuple."""
    return inspect.isclass(value) and (dataclasses.is_dataclass(value) or issubclass(value, tuple))


def public_methods(name, value):
    for method_name, method in vars(value).items():
        if inspect.isfunction(method) and not method_name.startswith("_"):
            _, *parameters = inspect.signature(method).parameters
            if parameters:
                yield f"{name}.{method_name}", parameters


PUBLIC = dict(public_callables())
PAIRS = [
    (name, parameter)
    for name, parameters in PUBLIC.items()
    for parameter in parameters
    if name not in RECORDS and (name, parameter) not in SAME_ON_ALL_STAGES
]


def test_every_public_function_is_probed_and_every_probe_is_public():
    assert set(PUBLIC) == set(PROBES) | set(RECORDS)
    assert not set(PROBES) & set(RECORDS)


@pytest.mark.parametrize("name", [name for name in PUBLIC if name in PROBES])
def test_every_parameter_changes_some_result(name):
    probe = PROBES[name]
    free = {parameter for other, parameter in SAME_ON_ALL_STAGES if other == name}
    assert set(probe.changes) == set(PUBLIC[name]) - free
    unused = [parameter for parameter in probe.changes if not probe.differs(parameter)]
    assert not unused, f"{name}: {', '.join(unused)} changed nothing"


@pytest.mark.parametrize("name", RECORDS)
def test_every_field_of_a_result_takes_different_values(name):
    for field_name in PUBLIC[name]:
        values = [getattr(result, field_name) for result in RECORDS[name]]
        assert any(str(value) != str(values[0]) for value in values), field_name


JUNK = (math.nan, math.inf, -math.inf, -1, 0, 0.5, 10**30, 1e300)
# Parts of other functions, which call them with numbers that were checked before.
INNER = {
    "activations.norm_bytes",
    "activations.score_bytes",
    "flops.FlopBreakdown.times",
    "parameter_count.ParameterCount.times",
    "pipeline.PassTimes.of",
    "schedules.dualpipe_order",
    "schedules.gpipe_order",
    "schedules.interleaved_order",
    "schedules.naive_order",
    "schedules.one_f_one_b_order",
    "schedules.zb1p_order",
    "shape.Matrix",
    "stagetime.Work.times",
    "stagetime.exposed",
    "states.LocalParameters",
    "states.layer_kinds",
    "units.format_bytes",
    "units.gb",
    "units.gib",
}
# Differences and estimates, which are below 0 when the second number is the larger one.
SIGNED = {
    "communication.saved_fraction",
    "communication.throughput_gain",
}


def numbers_in(result):
    """All numbers of a result, however deep."""
    if isinstance(result, int | float):
        yield result
    elif isinstance(result, dict):
        yield from numbers_in(list(result.values()))
    elif isinstance(result, list | tuple):
        for item in result:
            yield from numbers_in(item)
    elif dataclasses.is_dataclass(result):
        yield from numbers_in([getattr(result, leaf.name) for leaf in dataclasses.fields(result)])


def numeric_changes(probe):
    """Parameters that are numbers, with the other arguments of their change."""
    for name, change in probe.changes.items():
        change = change if isinstance(change, Given) else Given(change)
        if isinstance(change.value, int | float) and not isinstance(change.value, bool):
            yield name, probe.base | change.others


@pytest.mark.parametrize(
    "name", [n for n in PROBES if n not in INNER and not n.startswith("validation.")]
)
def test_a_bad_number_is_refused_in_one_sentence_or_harms_nothing(name):
    probe = PROBES[name]
    for parameter, arguments in numeric_changes(probe):
        for junk in JUNK:
            try:
                result = probe.call(**arguments | {parameter: junk})
            except ValueError as error:
                words = str(error)
                assert ": " in words and "\n" not in words, (parameter, junk, words)
                continue
            for number in numbers_in(probe.see(result) if probe.see else result):
                assert math.isfinite(number), (parameter, junk)
                assert number >= 0 or name in SIGNED, (parameter, junk, number)


def test_a_parameter_that_is_validated_and_ignored_is_found():
    def ignores(size, unit="GB"):
        validation.choice("unit", unit, ("GB", "GiB"))
        return size

    probe = Probe(ignores, {"size": 1}, {"size": 2, "unit": "GiB"})
    assert probe.differs("size") and not probe.differs("unit")
