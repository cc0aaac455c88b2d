"""What really happened: tensors kept, gradients, collectives, bytes sent."""

from course_lib.measure import collectives, gradients, saved_tensors, wire

__all__ = ["collectives", "gradients", "saved_tensors", "wire"]
