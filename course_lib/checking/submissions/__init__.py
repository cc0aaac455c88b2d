"""Grades submitted notebooks: `course check`.

    course check ── supervisor ─┬─ submission: runs the cells; `check` submits the answers
                                └─ then a fresh fork for each answer: reports the verdict

The supervisor enforces the limits and kills everything else. The last answer to an exercise counts,
and all exercises of the chapter count, even those that the notebook no longer has.
"""
