"""Records the stack that allocated each tensor's memory, and when it was freed.

On a GPU, `torch.cuda.memory._record_memory_history()` records this; this module
does the same for CPU tensors.
"""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from course_lib.measure.peak import Watch, watching

Frame = tuple[str, int, str]  # file, line, function
Event = tuple[str, int, int, tuple[Frame, ...]]

_DEEPEST = 60  # frames
_SKIPPED_FILES = {__file__, sys.modules[Watch.__module__].__file__}
_NOTEBOOK = tuple(f"{os.sep}{name}{os.sep}" for name in ("IPython", "ipykernel"))


@dataclass
class History:
    """Events ("alloc" or "free", block number, bytes, stack), in order.

    A stack begins with the innermost call and ends above the notebook's frames.
    """

    events: list[Event] = field(default_factory=list)

    def note(self, number: int, change: int) -> None:
        """Record an allocation or, if `change` is negative, a free, with its stack."""
        action = "alloc" if change > 0 else "free"
        self.events.append((action, number, abs(change), _stack()))


@contextmanager
def record_history() -> Iterator[History]:
    """Record allocation and free of each tensor created inside the `with` block.

    Enter it before building the model. A storage that is resized, as by FSDP,
    must shrink to zero or grow from zero bytes.
    """
    history = History()
    with watching(Watch(history.note)):
        yield history


def _stack() -> tuple[Frame, ...]:
    frames: list[Frame] = []
    frame = sys._getframe(1)
    while frame is not None and len(frames) < _DEEPEST:
        name = frame.f_code.co_filename
        if any(part in name for part in _NOTEBOOK):
            break
        if name not in _SKIPPED_FILES:
            frames.append((name, frame.f_lineno, frame.f_code.co_name))
        if frame.f_back is None:
            break
        frame = frame.f_back
    return tuple(frames)
