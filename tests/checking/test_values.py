"""What an answer is: amounts in texts, plain values, and what kind of wrong they are."""

import enum
import math
from collections import OrderedDict, namedtuple
from fractions import Fraction

import numpy
import pytest

from course_lib.checking import Wrong, expect_choice, expect_number, run
from course_lib.checking.helpers import is_number, same
from course_lib.checking.values import UNITS, amount, kind_of_wrong, split, to_builtin


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("24.9 GB", 24.9e9),
        ("24.9GB", 24.9e9),
        ("1 GiB", 2**30),
        ("1,024", 1024),
        ("15 %", 0.15),
        ("3.2 ms", 0.0032),
        ("5 µs", 5e-6),
        ("2 h", 7200),
        ("-1.5e3", -1500),
        ("312 TFLOP/s", 312e12),
        (".5", 0.5),
        ("−1,234,567.5", -1_234_567.5),
    ],
)
def test_an_amount(text, number):
    assert amount(text) == pytest.approx(number, rel=1e-12)


@pytest.mark.parametrize(
    "text", ["", "many", "3 apples", "GB", "1 2", "12x768x12", "0x10", "1e", "--1", "1e999"]
)
def test_what_is_no_amount(text):
    assert amount(text) is None


def test_every_unit_is_read():
    for unit, (_, size) in UNITS.items():
        assert amount(f"2 {unit}") == pytest.approx(2 * size)
        assert amount(f"2 {unit}", unit) == amount("2", unit) == 2


@pytest.mark.parametrize(
    ("text", "unit", "number"),
    [
        ("280 GB", "GB", 280),
        ("0.28 TB", "GB", 280),
        ("1.24 GiB", "GiB", 1.24),
        ("1 GiB", "GB", 1.073741824),
        ("18.3 ms", "s", 0.0183),
        ("34 days", "days", 34),
        ("48 h", "days", 2),
        ("15 %", "%", 15),
        ("4,096 tokens", "tokens", 4096),
        ("280 s", "GB", None),
        ("280 GB", "tokens", None),
        ("15 %", "GB", None),
    ],
)
def test_an_amount_in_the_unit_that_is_asked_for(text, unit, number):
    assert amount(text, unit) == (number if number is None else pytest.approx(number, rel=1e-12))


@pytest.mark.parametrize(
    "text", ["24,9 GB", "0,5", "1,5 s", "41,7", "1,0245", "1024,5", "0,500", "1,024,5"]
)
def test_a_decimal_comma_is_no_thousands_separator(text):
    with pytest.raises(ValueError, match="write a decimal point"):
        split(text)


ALWAYS = {"__eq__": lambda *_: True, "__ne__": lambda *_: False, "__hash__": lambda _: 1}
BASES = [(int, 3), (float, 2.5), (str, "a"), (list, [1]), (tuple, (1,)), (dict, {1: 2}), (set, {1})]


def liar(base, *arguments, **more):
    return type("Liar", (base,), {**ALWAYS, **more})(*arguments)


@pytest.mark.parametrize(("base", "value"), BASES)
def test_subclasses_become_pythons_own_types(base, value):
    found = to_builtin(liar(base, value))
    assert type(found) is base and found == value
    inside = to_builtin([(1, {"a": liar(base, value)})])
    assert type(inside[0][1]["a"]) is base


def test_own_methods_cannot_hide_the_value():
    silent = dict.fromkeys(("__iter__", "items", "__len__", "__index__", "__float__"), None)
    assert to_builtin(liar(dict, {"a": 1}, **silent)) == {"a": 1}
    assert to_builtin(liar(list, [1, 2], **silent)) == [1, 2]
    assert to_builtin(liar(int, 7, __int__=None, **silent)) == 7


def test_other_numbers_and_named_containers():
    colour = enum.IntEnum("colour", ["RED"])
    values = [numpy.float64(0.5), numpy.int64(2**62 + 1), colour.RED, OrderedDict(a=1)]
    found = to_builtin([*values, namedtuple("Pair", "x y")(1, 2), Fraction(1, 3)])
    assert found == [0.5, 2**62 + 1, 1, {"a": 1}, (1, 2), Fraction(1, 3)]
    assert [type(each) for each in found] == [float, int, int, dict, tuple, Fraction]


def test_an_object_that_says_it_is_another_type_is_refused():
    with pytest.raises(Wrong, match="an object of Liar that says it is another type"):
        to_builtin([liar(object, __class__=property(lambda _: str))])


def test_functions_classes_and_objects_stay():
    thing = object()
    for value in (len, int, thing, lambda: 1):
        assert to_builtin(value) is value


def test_no_comparison_believes_a_liar():
    assert not same(liar(tuple, (1, 2)), (3, 4))
    assert not same([liar(int, 1)], [2])
    assert not same(liar(object), 3) and not same(liar(object), "a")
    assert not is_number(liar(object, __class__=property(lambda _: float)))
    assert type(run(lambda: liar(float, 1.0))) is float
    with pytest.raises(Wrong):
        expect_number(liar(float, 1), 2, "so")
    with pytest.raises(Wrong):
        expect_choice(to_builtin(liar(str, "no")), "yes", "so", ["yes", "no"])


@pytest.mark.parametrize(
    ("given", "expected", "words"),
    [
        (24.9e9, 23.2e9 * 24.9e9 / (23.2e9 * 1024**3 / 1e9), "too large: GiB and GB"),
        (1000, 1024, "too small: KiB and kB"),
        (800, 100, "too large: bits or bytes?"),
        (15, 0.15, "too large: percent or fraction?"),
        (62.6e-3, 62.6, "too small: look at the unit"),
        (50, 100, "too small: exactly a factor of 2"),
        (99, 100, "too small, by less than 2 %: rounded too early, or one off?"),
        (130, 100, "too large, by less than half"),
        (700, 100, "too large, by less than a factor of 10"),
        (70_123, 100, "too large, by more than a factor of 10"),
        (-5, 5, "it has the wrong sign"),
        (0, 5, "0 is not it"),
        (5, 0, "too large"),
        (math.nan, 5, "it should be an ordinary number"),
        (10**400, 5, "it should be an ordinary number"),
        ([1, 2, 30], [1, 2, 3], "part 3 of 3: too large, by more"),
        ([1, 3, 2], [1, 2, 3], "the right parts in the wrong order, from part 2 on"),
        ([1], [1, 2], "too few parts"),
        ([1, 2, 3], [1, 2], "too many parts"),
        ({"a": 1, "b": 4}, {"a": 1, "b": 2}, "'b': too large: exactly a factor of 2"),
        ({"a": 1}, {"a": 1, "b": 2}, "nothing for 'b'"),
        ({"a": 1, "c": 2}, {"a": 1}, "more entries than asked for"),
        ("x", 3, "it should be a number"),
        (3, True, "it should be True or False"),
        ("a", "b", "it is not that"),
    ],
)
def test_the_kind_of_wrong(given, expected, words):
    assert kind_of_wrong(given, expected).startswith(words)


def test_the_value_is_never_told():
    for expected in (123.456, 98765, [12345, 6789], {"a": 4321.5}, "the answer"):
        for given in (1.5, -7, [1.5, 6789], {"a": 3}, "another"):
            said = kind_of_wrong(given, expected)
            assert not any(
                part in said for part in ("123.456", "98765", "12345", "4321", "the ans")
            )
