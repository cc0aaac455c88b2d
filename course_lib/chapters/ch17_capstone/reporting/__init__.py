"""The learner's own report: predictions, measurements, gaps, plan, and where intuition was off.

`report()` makes one page from what the learner has done. `keep_plan` and `keep_run` store the plan
and the small run of chapter 17 for it; the learner's own words are in a Markdown file that is never
overwritten.
"""

from course_lib.chapters.ch17_capstone.reporting.guesses import typical_miss
from course_lib.chapters.ch17_capstone.reporting.kept import keep_plan, keep_run
from course_lib.chapters.ch17_capstone.reporting.writing import Report, report

__all__ = ["Report", "keep_plan", "keep_run", "report", "typical_miss"]
