"""The submission's side: what it does and answers, told to the keeper through one pipe.

Messages are short enough that the pipe takes each in one piece, from whichever process. An answer
is a file of its own, whose name the message tells.
"""

import json
import os
import select
import tempfile

from course_lib.checking.submissions.answers import packed

# Names the folder of a grading, in the environment of the submission.
GRADING = "COURSE_GRADING"
# In it: the pipe, the answers, and where the submission works.
PIPE, ANSWERS, WORK = "told", "answers", "work"
# No text may be longer; escaped, a character has up to six bytes.
_LONGEST = getattr(select, "PIPE_BUF", 512) // 16


def is_graded() -> bool:
    """Whether this process belongs to a submission."""
    return GRADING in os.environ


def hand_over(exercise_id: str, answer: object) -> None:
    """Send an answer to the judge. Its verdict never comes back here."""
    folder = os.environ[GRADING]
    try:
        # The judge cannot import what lay beside the notebook.
        raw = packed(answer, own=os.path.join(folder, WORK))
        handle, name = tempfile.mkstemp(dir=os.path.join(folder, ANSWERS))
        with os.fdopen(handle, "wb") as file:
            file.write(raw)
    except Exception as error:
        tell(id=str(exercise_id), refused=f"{type(error).__name__}: {error}")
    else:
        tell(id=str(exercise_id), answer=os.path.basename(name))


def tell(**message: int | str) -> None:
    """Send one message, its texts shortened so that it fits."""
    short = {key: x[:_LONGEST] if isinstance(x, str) else x for key, x in message.items()}
    line = json.dumps(short).encode() + b"\n"
    pipe = os.open(os.path.join(os.environ[GRADING], PIPE), os.O_WRONLY)
    try:
        os.write(pipe, line)
    finally:
        os.close(pipe)
