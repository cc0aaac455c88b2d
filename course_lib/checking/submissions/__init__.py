"""Grades notebooks that somebody handed in: `course check`.

    course check ── supervisor ─┬─ submission: runs the cells; `check` hands answers over
                                └─ then a fresh fork for each answer: says the verdict

The supervisor holds the limits and ends everything else. The last answer to an exercise counts, and
all exercises of the chapter count, whether or not the notebook still has them.
"""
