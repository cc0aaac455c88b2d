"""Whose parts a demo runs: the course's own, or those that the learner has built."""

from course_lib import mine

WHOSE = ("course", "mine")


def with_yours(parts: str, *names: str) -> str:
    """ ", with your DDP": which of these are the learner's and run; "" where none is."""
    built = [name for name in names if parts == "mine" and mine.is_mine(name)]
    return f", with your {', '.join(built)}" if built else ""


def where_to_look(traceback: str, record: str | None, parts: str) -> str:
    """What helps after a failure: the line of the learner's own part, if it came through one."""
    if found := mine.places(traceback):
        also = f", or see `course diagnose {record}`" if record else ""
        return f"your part was at {'; and at '.join(found)}: mend it{also}"
    if record:
        return f"see `course diagnose {record}`"
    if parts == "mine":
        return "your parts took part: does it run with `--parts course`?"
    return "see `course doctor`"
