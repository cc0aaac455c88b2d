"""The one exception that reaches a user as a sentence instead of a traceback."""


class Problem(Exception):
    """One sentence that says what is wrong and how to fix it."""

    def _render_traceback_(self) -> list[str]:
        # IPython asks for this: in a notebook, too, the sentence is all there is to read.
        return [str(self)]
