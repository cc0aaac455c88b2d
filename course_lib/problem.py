"""The exception that is shown to the user as a sentence instead of a traceback."""


class Problem(Exception):
    """One sentence that says what is wrong and how to fix it."""

    def _render_traceback_(self) -> list[str]:
        # Called by IPython: in a notebook, too, only the sentence is shown.
        return [str(self)]
