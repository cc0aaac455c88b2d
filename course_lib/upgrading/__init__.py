"""A new version of the course for a learner's clone, beside what the learner wrote.

`git` asks git, `standing` refuses what cannot be upgraded and says how to change that, `aside`
renames what is in the way, `upgrade` does it all in an order that can be interrupted anywhere.
"""

from course_lib.upgrading.upgrade import upgrade

__all__ = ["upgrade"]
