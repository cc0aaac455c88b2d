"""The one exception that reaches a user as a sentence instead of a traceback."""


class Problem(Exception):
    """One sentence that says what is wrong and how to mend it."""
