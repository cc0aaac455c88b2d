"""Sliders → theory → figure. Each function returns a panel to be named last in a cell.

A chapter's own panels are in `panels` of its room, and its stories of several steps in `steppers`.
"""

from course_lib.panels.batches import batches
from course_lib.panels.panel import Panel
from course_lib.panels.stepper import Stepper

__all__ = ["Panel", "Stepper", "batches"]
