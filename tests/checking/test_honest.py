"""What a value says of itself does not count."""

import enum
from collections import OrderedDict, namedtuple
from fractions import Fraction

import numpy
import pytest

from course_lib.checking import Wrong, expect_choice, expect_number, run
from course_lib.checking.helpers import is_number, same
from course_lib.checking.values import to_builtin

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


@pytest.mark.parametrize(("base", "value"), BASES)
def test_what_holds_no_subclass_is_returned_as_it_is(base, value):
    nested = [value, {"a": (value, ..., None, True)}]
    assert to_builtin(value) is value and to_builtin(nested) is nested


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
