"""The bytes behind tensors, real or fake."""

from collections.abc import Iterable

from torch import Tensor


def tensor_bytes(tensors: Iterable[Tensor]) -> int:
    """Bytes of the storages behind `tensors`, each storage counted once.

    For a DTensor, only this rank's shard counts, with its padding.
    """
    own = [t.to_local() if hasattr(t, "to_local") else t for t in tensors]
    storages = [t.untyped_storage() for t in own]
    # By the storage itself: a fake one has no address, and all of device
    # "meta" have the same.
    return sum({it._cdata: it.nbytes() for it in storages}.values())
