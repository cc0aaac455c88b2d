"""Refuses arguments of the wrong kind where a function or a record takes one of our records."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import is_dataclass
from functools import wraps
from types import NoneType, UnionType
from typing import Any, TypeVar, get_args, get_origin

from course_lib.validation import told

Checked = TypeVar("Checked", bound=Callable[..., Any])

_CONTAINERS: dict[Any, str] = {
    Sequence: "a list",
    tuple: "a tuple",
    Mapping: "a dict",
    Collection: "a list",
}


def checked(thing: Checked) -> Checked:
    """`thing`, a function or a dataclass, with a TypeError of one sentence for the wrong kind.

    It looks at the parameters that are annotated with a record (a dataclass or a named tuple), a
    sequence or a mapping; numbers and names are checked by `thing` itself. A class says in BY_NAME
    how one is found by its name: BY_NAME = "MODELS[{0}]".
    """
    if isinstance(thing, type):
        _check_fields(thing)
        return thing
    wanted = tuple(_wanted(thing))
    records = [(place, kinds) for place, _, kinds, item in wanted if item is None]
    # Millions of calls are made by sliders and plans: mostly of one record.
    simple = len(wanted) == len(records) == 1
    first, kind = records[0] if simple else (10**9, ())

    @wraps(thing)
    def call(*args: Any, **named: Any) -> Any:
        if len(args) <= first or not isinstance(args[first], kind):
            _check(wanted, args, named)
        return thing(*args, **named)

    return call  # type: ignore[return-value]


def _check_fields(record: type) -> None:
    """Let a dataclass check its fields when it is built, before what it does then itself."""
    wanted = tuple(_wanted(record.__init__))  # type: ignore[misc]
    fields = [(name, kinds) for _, name, kinds, _ in wanted]
    deep = any(item and item is not Any for *_, item in wanted)
    after: Callable[[Any], None] = record.__post_init__  # type: ignore[attr-defined]

    @wraps(after)
    def build(self: Any) -> None:
        for name, kinds in fields:
            if deep or not isinstance(getattr(self, name), kinds):
                _check(wanted, (), vars(self))
        after(self)

    record.__post_init__ = build  # type: ignore[attr-defined]


def _check(wanted: "tuple[Wanted, ...]", args: tuple[Any, ...], named: dict[str, Any]) -> None:
    """Raise TypeError for the first argument of another kind than is wanted."""
    given = len(args)
    for place, name, kinds, item in wanted:
        if place < given:
            value = args[place]
        elif name in named:
            value = named[name]
        else:
            continue
        if not isinstance(value, kinds) or (item and isinstance(value, str)):
            raise _wrong(name, value, kinds)
        if item and item is not Any:
            parts: Any = value or ()
            for entry, part in enumerate(parts):
                if not isinstance(part, item):
                    raise _wrong(f"{name}[{entry}]", part, (item,))


Wanted = tuple[int, str, tuple[type, ...], Any]


def _wanted(function: Callable[..., Any]) -> Iterator[Wanted]:
    """Place, name, kinds and kind of the entries for each parameter that is looked at.

    The entries' kind is None for a record, Any for a container of anything else.
    """
    code, defaults = function.__code__, _defaults(function)
    names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    for place, name in enumerate(names):
        annotation = function.__annotations__.get(name)
        kinds, item = _kinds(annotation)
        if kinds:
            # A default of None also stands for "derived": None may then be given as well.
            optional = (NoneType,) if defaults.get(name, "") is None else ()
            yield place if place < code.co_argcount else 10**9, name, (*kinds, *optional), item


def _defaults(function: Callable[..., Any]) -> dict[str, Any]:
    code = function.__code__
    positional = code.co_varnames[: code.co_argcount]
    values = function.__defaults__ or ()
    given = dict(zip(positional[len(positional) - len(values) :], values, strict=True))
    return given | (function.__kwdefaults__ or {})


def _kinds(annotation: Any) -> tuple[tuple[type, ...], Any]:
    """The classes that `annotation` allows if it is about a record or a container, else none."""
    if isinstance(annotation, UnionType):
        parts = [_kinds(part) for part in get_args(annotation) if part is not NoneType]
        kinds = tuple(kind for its, _ in parts for kind in its)
        every = all(its for its, _ in parts)
        return ((*kinds, NoneType), parts[0][1]) if every else ((), None)
    if _is_record(annotation):
        return (annotation,), None
    origin = get_origin(annotation)
    if origin in _CONTAINERS:
        first = get_args(annotation)[0]
        item = get_origin(first) or first
        known = origin is not Mapping and (_is_record(item) or item in _CONTAINERS)
        return (origin,), item if known else Any
    return (), None


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
