"""Interactive panels: sliders → theory → figure; end a cell with the panel to show it.

A chapter's own panels are in its `panels`, and its stories of several steps in its `steppers`.
"""

from course_lib.panels.batches import batches
from course_lib.panels.panel import Panel
from course_lib.panels.stepper import Stepper

__all__ = ["Panel", "Stepper", "batches"]
