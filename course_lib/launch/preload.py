"""Imported by the forkserver alone: importing it makes that process ready to fork ranks.

Ranks start in milliseconds because they find torch already imported. No CUDA and no OpenMP
thread may start here: neither survives a fork.
"""

import atexit
import contextlib
import gc
import multiprocessing.forkserver
import os
import shutil
import signal
from pathlib import Path
from typing import Any


def _detach_from_parent() -> None:
    """Keep none of the parent's pipes open, and ignore its Ctrl-C: ranks watch for its end."""
    os.setpgid(0, 0)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    null = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(null, stream)
    os.close(null)


def _leave(server_pid: int) -> None:
    """Remove the server's socket, which is left over if the parent was killed, and end at once."""
    if os.getpid() != server_pid:  # a process that some rank forked inherits this function
        return
    with contextlib.suppress(Exception):
        server: Any = multiprocessing.forkserver._forkserver  # its address is not public
        socket = Path(server._forkserver_address)
        if socket.parent.name.startswith("pymp-"):
            shutil.rmtree(socket.parent, ignore_errors=True)
    os._exit(0)  # an orderly shutdown of torch takes a second


def _import_heavy_modules() -> None:
    # OpenBLAS starts its threads when numpy is imported, unless there is only one.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    import cloudpickle  # noqa: F401
    import torch._dynamo  # (the first optimizer imports it: 1.2 s)
    import torch.distributed  # noqa: F401

    import course_lib.launch.rank  # noqa: F401


_detach_from_parent()
atexit.register(_leave, os.getpid())  # when the parent and all ranks have ended
_import_heavy_modules()
gc.collect()
gc.freeze()  # ranks need not scan torch's own objects again, which saves 70 ms at their end
