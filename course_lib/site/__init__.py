"""The course as web pages: notebooks with their outputs, and panels that move without a kernel.

`build` makes the pages, `python` what moves panels on them, `packed` is the copy that a wheel holds.
"""

from course_lib.problem import Problem

__all__ = ["Problem"]
