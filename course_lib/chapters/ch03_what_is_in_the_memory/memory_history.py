"""Who asked for each tensor's memory, and when it was given back.

On a GPU `torch.cuda.memory._record_memory_history()` writes this down; here it
is done for the tensors of a CPU.
"""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from course_lib.measure.peak import Watch, watching

Frame = tuple[str, int, str]  # file, line, function
Event = tuple[str, int, int, tuple[Frame, ...]]

_DEEPEST = 60
_OURS = {__file__, sys.modules[Watch.__module__].__file__}
_NOTEBOOK = tuple(f"{os.sep}{name}{os.sep}" for name in ("IPython", "ipykernel"))


@dataclass
class History:
    """What happened: ("alloc" or "free", number, bytes, stack) of each block.

    A stack begins with the innermost call and ends where a notebook begins.
    """

    events: list[Event] = field(default_factory=list)

    def note(self, number: int, change: int) -> None:
        """Write down a birth or a death, and who calls."""
        action = "alloc" if change > 0 else "free"
        self.events.append((action, number, abs(change), _stack()))


@contextmanager
def record_history() -> Iterator[History]:
    """Record each tensor that is made inside the block, and its end.

    Begin before the model is built. A storage that is resized, as under FSDP,
    must shrink to nothing, or grow from nothing.
    """
    history = History()
    with watching(Watch(history.note)):
        yield history


def _stack() -> tuple[Frame, ...]:
    found: list[Frame] = []
    frame = sys._getframe(1)
    while frame is not None and len(found) < _DEEPEST:
        name = frame.f_code.co_filename
        if any(part in name for part in _NOTEBOOK):
            break
        if name not in _OURS:
            found.append((name, frame.f_lineno, frame.f_code.co_name))
        if frame.f_back is None:
            break
        frame = frame.f_back
    return tuple(found)
