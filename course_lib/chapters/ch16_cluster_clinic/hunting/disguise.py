"""Hides from what a launch prints which fault was put in: its functions have telling names."""

import re

_FRAME = re.compile(r'^(?P<indent>\s*)File "[^"]*[/\\]course_lib[/\\]demos[/\\]faults[/\\][^"]+"')
_OTHER_FRAME = re.compile(r'^\s*File "')
_MARKS = re.compile(r"^\s*[~^]+\s*$")


def disguised(text: str) -> str:
    """The same text, with each run of the demo's own frames replaced by one of train.py.

    Of their source only lines that call torch.distributed stay: they are what a reader compares.
    """
    lines: list[str] = []
    ours = False  # whether the last frame was the demo's own
    for line in text.splitlines():
        if match := _FRAME.match(line):
            if not ours:
                lines.append(f'{match["indent"]}File "train.py", in update')
            ours = True
        elif ours and (_MARKS.match(line) or _is_source(line)):
            if "dist." in line:
                lines.append(line)
        else:
            ours = False
            lines.append(line)
    return "\n".join(lines)


def _is_source(line: str) -> bool:
    """Whether this is the source below a frame, which is further in than the frame."""
    return line.startswith("    ") and not _OTHER_FRAME.match(line)
