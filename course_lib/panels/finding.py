"""Finds a panel by the name of its file."""

import sys
from collections.abc import Sequence
from importlib import import_module
from pkgutil import iter_modules
from typing import Any


def names(path: Sequence[str], ending: str) -> list[str]:
    """The names of the files in a package that end with `ending`, without it."""
    files = [module.name for module in iter_modules(path) if not module.ispkg]
    return [name.removesuffix(ending) for name in files if name.endswith(ending)]


def one(package: str, path: Sequence[str], name: str, ending: str) -> Any:
    """The function `name` of the file of that name. Raises AttributeError for another name."""
    known = names(path, ending)
    if name not in known:
        kind = package.rpartition(".")[2]
        raise AttributeError(f"no {kind[:-1]} {name!r}; the {kind} are {', '.join(known)}")
    function = getattr(import_module(f"{package}.{name}{ending}"), name)
    setattr(sys.modules[package], name, function)
    return function
