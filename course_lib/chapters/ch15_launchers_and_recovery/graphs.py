"""How many graphs torch.compile makes when the size of the batch changes."""

from collections.abc import Sequence


def graphs_made(sizes: Sequence[int]) -> int:
    """Graphs of one function without breaks, called with batches of these sizes, in this order.

    One for the first size; at the first other size one for all sizes above 1, however many come; 1
    always has its own. Default settings of torch 2.13 (`dynamic=None`), no other change.
    Source: torch.compile's documentation, "Dynamic Shapes"; counted by measure.gradients.
    """
    made: set[int | str] = set()
    for size in sizes:
        if size not in made and (size == 1 or "any" not in made):
            # The first call fixes its size; a later one has shown that the size changes.
            made.add("any" if made and size > 1 else size)
    return len(made)
