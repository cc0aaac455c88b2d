"""Output that no terminal refuses."""

import io
import sys


def never_refuse() -> None:
    """Let stdout and stderr write a ? for what their encoding does not have, instead of failing.

    For every program of ours, before it prints: an old Chinese or C locale has no µ, and an answer
    that took a minute must not end in a UnicodeEncodeError.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a notebook's stream takes everything
            stream.reconfigure(errors="replace")
