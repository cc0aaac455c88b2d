"""Grades notebooks that somebody handed in: `course check`.

    course check ── keeper ─┬─ submission: runs the cells; its `check` hands each answer over
    (`grading_of`)          └─ judge ── a fresh fork for each answer: grades it, says the verdict

The keeper holds the limits and ends everything else. The last answer to an exercise counts, and all
exercises of the chapter count, whether or not the notebook still has them.
"""
