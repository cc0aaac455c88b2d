"""Is it a bug or rounding? Two runs of one update, tensor by tensor.

`record` writes down an update on every rank; `compare` reads two such folders.
"""

from course_lib.comparing.judging import compare
from course_lib.comparing.recording import Recording, record
from course_lib.comparing.result import Compared, Judged

__all__ = ["Compared", "Judged", "Recording", "compare", "record"]
