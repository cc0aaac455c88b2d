"""Imported by the forkserver alone: importing it makes that process ready to fork ranks.

Ranks start in milliseconds because they find torch already imported. No CUDA and no OpenMP
thread may start here: neither survives a fork.
"""

import gc
import os
import signal


def _detach_from_parent() -> None:
    """Hold none of the parent's pipes open, and outlive a Ctrl-C that the parent handles."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    null = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(null, stream)
    os.close(null)


def _import_heavy_modules() -> None:
    # OpenBLAS starts its threads when numpy is imported, unless there is only one.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    import cloudpickle  # noqa: F401
    import torch._dynamo  # noqa: F401  (the first optimizer imports it: 1.2 s)
    import torch.distributed  # noqa: F401

    import course_lib.launch.rank  # noqa: F401



_detach_from_parent()
_import_heavy_modules()
gc.collect()
gc.freeze()  # ranks need not look through torch's own objects again: 70 ms less at their end
