"""Wrong versions as patches of a right one, each made when its test asks for it.

    the mean
    - return wire.reduce_scatter(vector)
    + return wire.reduce_scatter(vector) / self.ranks
    ? 1 1/3 of what is expected: the mean over ranks

What it is; texts of the right version and what replaces them, as often as needed; and after the
number of the step, if it is given, the words that the refusal must have. A row that begins with
what is new replaces the same text as the row before it. What nothing replaces is a statement:
`pass` stands there.
"""

import inspect
import re
import sys
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from itertools import takewhile
from typing import Any

import torch
import torch.distributed as dist


def patched(right, *changes):
    """The function or class `right` with texts in its source replaced: old, new, old, new, …

    Each old text must be there exactly once. Its further lines are indented from its first one. New
    ones may name torch, dist, and what the module has in which `right` stands.
    """
    source = _source(right)
    for old, new in zip(changes[::2], changes[1::2], strict=True):
        source = _replaced(source, old, new)
    space = {"torch": torch, "dist": dist} | vars(sys.modules[right.__module__])
    exec(compile(source, "<a patch>", "exec"), space)
    return space[re.search(r"^(?:class|def) (\w+)", source, re.M)[1]]


@cache
def _source(right):
    return textwrap.dedent(inspect.getsource(right))


@dataclass(frozen=True)
class Later:
    """An answer that is made when it is asked for: ranks import all of them, and need one."""

    make: Callable[[], Any]


def _replaced(source, old, new):
    found = []
    for start in [place.start() for place in re.finditer(re.escape(old.split("\n")[0]), source)]:
        line = source[source.rfind("\n", 0, start) + 1 : start]
        indent = "\n" + " " * (len(line) - len(line.lstrip()))
        if source.startswith(old.replace("\n", indent), start):
            found.append((start, indent))
    if len(found) != 1:
        raise ValueError(f"{old!r} is there {len(found)} times, not once")
    ((start, indent),) = found
    end = start + len(old.replace("\n", indent))
    return source[:start] + new.replace("\n", indent) + source[end:]


def versions(right, answer, patches):
    """(what it is, `Later` answer(the patched version), words) of each patch in a text."""
    found, same = [], []
    for row in re.split(r"\n(?=[^-+?\n])", textwrap.dedent(patches).strip("\n")):
        title, *lines = row.split("\n")
        lines = [*same, *lines] if lines[0][0] == "+" else lines
        same = list(takewhile(lambda line: line[0] == "-", lines))
        hunks = re.findall(r"((?:^-.*\n)+)((?:^\+.*\n)*)", "\n".join(lines), re.M)
        hunks = [(old, new or "+ pass") for old, new in hunks]
        changes = ["\n".join(one[2:] for one in part.splitlines()) for h in hunks for part in h]
        step, words = re.fullmatch(r"\? (?:(\d)(?: |$))?(.*)", lines[-1]).groups()
        before = f"step {step} of .*" if step else ""
        later = Later(lambda changes=changes: answer(patched(right, *changes)))
        found.append((title, later, before + words))
    return found
