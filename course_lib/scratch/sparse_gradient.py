"""The sum of sparse gradients without a server: all ranks gather all rows.

`nn.Embedding(sparse=True)` has a gradient of indices and values only. An
all-reduce adds entry by entry, and the entries of two ranks belong to
different rows; so every rank gathers all rows and adds them by number.
"""

import torch
from torch import Tensor
from torch.nn.functional import pad

from course_lib.scratch import wire


def sum_of_rows(gradient: Tensor) -> Tensor:
    """The sum over ranks of `gradient`, which is sparse, as is the result."""
    mine = gradient.coalesce()  # a row that was used twice now stands once
    ids, values = mine.indices()[0], mine.values()
    counts = wire.all_gather(torch.tensor([len(ids)]))
    most = int(counts.max())
    missing = most - len(ids)  # only parts of one length can be gathered
    ids = wire.all_gather(pad(ids, (0, missing)))
    values = wire.all_gather(pad(values, (0, 0, 0, missing)))
    filled = (torch.arange(most) < counts[:, None]).flatten()
    rows = ids[filled][None], values[filled]
    return torch.sparse_coo_tensor(*rows, gradient.shape).coalesce()
