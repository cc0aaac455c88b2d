"""The number of graphs that torch.compile makes when the batch size changes."""

from collections.abc import Sequence


def graphs_made(sizes: Sequence[int]) -> int:
    """Number of graphs compiled for a function without breaks, called with these batch sizes.

    The first size gets a static graph; the first different size gets a dynamic graph for all sizes
    above 1; size 1 always has its own. Default settings of torch 2.13 (`dynamic=None`).
    Source: torch.compile's documentation, "Dynamic Shapes"; counted by measure.gradients.
    """
    made: set[int | str] = set()
    for size in sizes:
        if size not in made and (size == 1 or "any" not in made):
            # The first call specializes on its size; a later one shows that the size is dynamic.
            made.add("any" if made and size > 1 else size)
    return len(made)
