"""What really happened: tensors kept, collectives sent, bytes on the wire, times."""

from course_lib.measure import collectives, gradients, saved_tensors

__all__ = ["collectives", "gradients", "saved_tensors"]
