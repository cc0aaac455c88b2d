"""A batch of text, this rank's rows of it, and their part of the loss."""

from collections.abc import Callable

from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from course_lib import launch

Batch = tuple[Tensor, Tensor]  # inputs, labels: (batch, sequence)


def both(change: Callable[[Tensor], Tensor], batch: Batch) -> Batch:
    """The same change made to inputs and labels."""
    inputs, labels = batch
    return change(inputs), change(labels)


def rows_of(batch: Batch, number: int, parts: int) -> Batch:
    """The rows of part `number`; where they do not divide, the first parts have one row more.

    Raises ValueError for fewer rows than parts.
    """
    if len(batch[0]) < parts:
        raise ValueError(
            f"batch {len(batch[0])} leaves some of {parts} ranks without a sample: "
            f"take at least {parts}"
        )
    return both(lambda tensor: tensor.tensor_split(parts)[number], batch)


def own_rows(batch: Batch, rank: launch.Rank) -> Batch:
    """The rows of this rank; ValueError for a batch with fewer rows than ranks."""
    return rows_of(batch, rank.rank, rank.world)


def mean_loss(model: nn.Module, batch: Batch) -> Tensor:
    """Mean cross-entropy over all tokens of the batch."""
    inputs, labels = batch
    return cross_entropy(model(inputs).flatten(0, 1), labels.flatten())


def loss_share(model: nn.Module, rows: Batch, batch: Batch) -> Tensor:
    """What some rows contribute to the mean loss of a batch: the shares of all rows are its sum."""
    return mean_loss(model, rows) * (len(rows[0]) / len(batch[0]))
