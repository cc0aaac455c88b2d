"""Another name of `Drawing`."""

from course_lib.figures.paper.drawing import Drawing

Sheet = Drawing
