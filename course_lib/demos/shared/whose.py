"""Whose parts a version runs."""

from course_lib import mine


def named(name: str, parts: str, *wanted: str) -> str:
    """The version's name, and which of the wanted parts are the learner's own."""
    built = [one for one in wanted if parts == "mine" and mine.is_mine(one)]
    return f"{name}, with your {', '.join(built)}" if built else name
