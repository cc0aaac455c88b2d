"""What the parent raises when a rank does not return a result."""


class RankFailed(RuntimeError):
    """A rank raised, died, or gave no result in time.

    rank: the rank that failed first; reason: what happened to it, worded to follow "rank 1";
    traceback: where it happened (in that rank), or the last lines that it printed.
    """

    def __init__(self, rank: int, reason: str, traceback: str = "") -> None:
        super().__init__(rank, reason, traceback)
        self.rank = rank
        self.reason = reason
        self.traceback = traceback

    def __str__(self) -> str:
        sentence = f"rank {self.rank} {self.reason}"
        return f"{sentence}\n\n{self.traceback}" if self.traceback else sentence

    def _render_traceback_(self) -> list[str]:
        # IPython asks for this: the frames of the launcher itself would only hide the rank's own.
        return [f"{type(self).__name__}: {self}"]
