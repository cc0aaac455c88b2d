"""Validates the arguments of functions and records against their annotations.

A record, sequence or mapping of the wrong type raises a one-sentence TypeError. The annotation of a
number or string names its check, as in `ranks: Count`, or lists the allowed strings, as in
`unit: Annotated[str, ("GB", "GiB")]`: any other value raises a ValueError.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import is_dataclass
from functools import partial, wraps
from inspect import Parameter, signature
from types import FunctionType, NoneType, UnionType
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin

from course_lib.validation import choice, flag, fraction, number, text, told, whole

# True while a function runs whose arguments have all been checked: the functions that it calls get
# no user input, so they skip their checks. Records are always checked when they are built.
_inside = False
Checked = TypeVar("Checked", bound=Callable[..., Any])

# A check is a function of an argument's name and value.
Count = Annotated[int, whole]
CountOrZero = Annotated[int, partial(whole, least=0)]
Positive = Annotated[float, partial(number, above=0)]
NotNegative = Annotated[float, partial(number, least=0)]
Fraction = Annotated[float, fraction]
Text = Annotated[str, text]

_CONTAINERS: dict[Any, str] = {
    Sequence: "a list",
    tuple: "a tuple",
    Mapping: "a dict",
    Collection: "a list",
}
# The allowed classes, () for any, and the check that the value must pass.
_Rule = tuple[tuple[type, ...], Callable[[str, Any], None] | None]


def checked(thing: Checked) -> Checked:
    """Wrap a function, or the constructor of a dataclass, so that it validates its arguments.

    Checked are parameters whose annotation is a record (a dataclass or a named tuple), a sequence,
    a mapping, bool, or Annotated with a check, and the entries of containers of those. In BY_NAME a
    class says how to look up an instance by name, for error messages: BY_NAME = "MODELS[{0}]".
    """
    if isinstance(thing, type):
        thing.__init__ = checked(thing.__init__)  # type: ignore[misc]
        return thing
    parameters = signature(thing).parameters
    rules = {name: _rule_of(parameter) for name, parameter in parameters.items()}
    if not any(map(any, rules.values())):
        return thing
    by_position = [(name, *rule) for name, rule in rules.items()]
    builds = thing.__name__ == "__init__"
    complete = all(_is_full(it.annotation) for name, it in parameters.items() if name != "self")

    @wraps(thing)
    def call(*args: Any, **named: Any) -> Any:
        global _inside
        if _inside and not builds:
            return thing(*args, **named)
        for (name, kinds, check), value in zip(by_position, args, strict=False):
            if kinds and not isinstance(value, kinds):
                raise _wrong(name, value, kinds)
            if check:
                check(name, value)
        for name, value in named.items():
            if name in rules:
                _apply(rules[name], name, value)
        if not complete:
            return thing(*args, **named)
        before, _inside = _inside, True
        try:
            return thing(*args, **named)
        finally:
            _inside = before

    return call  # type: ignore[return-value]


def check_public(module: dict[str, Any]) -> None:
    """Apply `checked` to all public functions, dataclasses and methods of a module.

    Call it as the last line of the module: check_public(globals())
    """
    for name, value in list(module.items()):
        if name.startswith("_") or getattr(value, "__module__", "") != module["__name__"]:
            continue
        if isinstance(value, FunctionType):
            module[name] = checked(value)
        elif isinstance(value, type):
            for key, method in list(vars(value).items()):
                built = key == "__init__" and is_dataclass(value)
                if isinstance(method, FunctionType) and (built or not key.startswith("_")):
                    setattr(value, key, checked(method))


def _apply(rule: _Rule, name: str, value: Any) -> None:
    kinds, check = rule
    if kinds and not isinstance(value, kinds):
        raise _wrong(name, value, kinds)
    if check:
        check(name, value)


def _rule_of(parameter: Parameter) -> _Rule:
    """The rule of one parameter; None is allowed too if it is the default."""
    rule = _rule(parameter.annotation)
    return _or_none(rule) if parameter.default is None else rule


def _rule(annotation: Any) -> _Rule:
    origin, parts = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        check = parts[1] if callable(parts[1]) else partial(choice, allowed=parts[1])
        return _or_none(((), check)) if NoneType in get_args(parts[0]) else ((), check)
    if annotation is bool:
        return (), flag
    if _is_record(annotation):
        return (annotation,), None
    if origin in _CONTAINERS:
        keys = _rule(parts[0]) if origin is Mapping else ((), None)
        return (origin,), partial(_each, keys, _rule(parts[origin is Mapping]))
    if origin in (Union, UnionType):
        rules = [_rule(part) for part in parts if part is not NoneType]
        if len(rules) == 1:
            return _or_none(rules[0])
        if all(kinds for kinds, _ in rules):
            either = sum((kinds for kinds, _ in rules), ())
            return (*either, NoneType) if NoneType in parts else either, None
    return (), None


def _is_full(annotation: Any) -> bool:
    """Whether the annotation checks the value completely, down to the entries of containers."""
    origin = get_origin(annotation)
    parts = [part for part in get_args(annotation) if part not in (NoneType, ...)]
    if origin in _CONTAINERS or (origin in (Union, UnionType) and len(parts) == 1):
        return all(map(_is_full, parts))
    if origin in (Union, UnionType):
        return all(map(_is_record, parts))
    return origin is Annotated or annotation is bool or _is_record(annotation)


def _or_none(rule: _Rule) -> _Rule:
    kinds, check = rule

    def unless_none(name: str, value: Any) -> None:
        if value is not None and check:
            check(name, value)

    return (*kinds, NoneType) if kinds else (), check and unless_none


def _each(keys: _Rule, rule: _Rule, name: str, values: Any) -> None:
    """Check each entry of a container; a str is refused, although it is a sequence."""
    if isinstance(values, str):
        raise _wrong(name, values, (Sequence,))
    if any(keys):
        for key in values:
            _apply(keys, f"{name} key", key)
    if any(rule):
        for entry, value in values.items() if isinstance(values, Mapping) else enumerate(values):
            _apply(rule, f"{name}[{entry!r}]", value)


def _is_record(annotation: Any) -> bool:
    if not isinstance(annotation, type):
        return False
    return is_dataclass(annotation) or (
        issubclass(annotation, tuple) and hasattr(annotation, "_fields")
    )


def _wrong(name: str, value: object, kinds: tuple[type, ...]) -> TypeError:
    kind = kinds[0]
    got = f"got {type(value).__name__} {told(value)}"
    if value is None:
        got = "got None"
    if kind in _CONTAINERS:
        words = _CONTAINERS[kind]
        return TypeError(f"{name} must be {words}, {got}: give {words}")
    article = "an" if kind.__name__[0] in "AEIO" else "a"
    or_none = " or None" if NoneType in kinds else ""
    by_name = getattr(kind, "BY_NAME", "")
    remedy = f"build one by {kind.__name__}(…)"
    if by_name:
        remedy = f"use {by_name.format(told(value) if isinstance(value, str) else '...')}"
    return TypeError(f"{name} must be {article} {kind.__name__}{or_none}, {got}: {remedy}")
