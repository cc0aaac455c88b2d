"""Whose parts a demo runs: the course's own, or those that the learner has built."""

from course_lib import mine

WHOSE = ("course", "mine")


def with_yours(parts: str, *names: str) -> str:
    """ ", with your DDP": which of these are the learner's and run; "" where none is."""
    built = [name for name in names if parts == "mine" and mine.is_mine(name)]
    return f", with your {', '.join(built)}" if built else ""
