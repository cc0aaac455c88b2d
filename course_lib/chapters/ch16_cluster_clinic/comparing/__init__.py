"""Bug or rounding? Compare two runs of one update, tensor by tensor.

`record` saves the tensors of an update on every rank; `compare` reads two such folders.
"""

from course_lib.chapters.ch16_cluster_clinic.comparing.judging import Compared, Judged, compare
from course_lib.chapters.ch16_cluster_clinic.comparing.recording import Recording, record

__all__ = ["Compared", "Judged", "Recording", "compare", "record"]
