"""From a cell of a real Jupyter kernel: a function defined there, an interrupt, a restart, a kill.

One kernel serves all tests of this file, in order; each leaves it as the next one needs it.
"""

import os
import queue
import shutil
import signal
import tempfile
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest
from jupyter_client.blocking import BlockingKernelClient
from jupyter_client.manager import KernelManager
from leftovers import BUSY_S, MARK, gone, marked, needs_signals, no_folders_in, wait_for

HANG = """
from course_lib import launch

def hang():
    import time
    import torch.utils.data
    from torch.utils.data import DataLoader

    workers = iter(DataLoader(range(100), num_workers=1))
    next(workers)
    print("hanging", flush=True)
    time.sleep(1000)

launch.run(hang, timeout_s=600)
"""


@dataclass
class Kernel:
    """A kernel, its client, and what its processes can be recognised by."""

    manager: KernelManager
    client: BlockingKernelClient
    mark: str
    temporary: Path

    def run(self, cell: str, timeout_s: float = BUSY_S) -> tuple[str, list[str]]:
        """What a cell printed, and the traceback lines that it showed."""
        return self.finish(self.client.execute(cell), timeout_s)

    def start(self, cell: str, until: str) -> str:
        """Start a cell and return once each of two ranks has printed `until`."""
        message = self.client.execute(cell)
        printed = ""
        while printed.count(until) < 2:
            printed += self._stream() or ""
        return message

    def finish(self, message: str, timeout_s: float = BUSY_S) -> tuple[str, list[str]]:
        printed, trace = "", []
        while True:
            reply = self.client.get_iopub_msg(timeout=timeout_s)
            if reply["parent_header"].get("msg_id") != message:
                continue
            content = reply["content"]
            printed += content.get("text", "")
            trace += content.get("traceback", [])
            if content.get("execution_state") == "idle":
                return printed, trace

    def _stream(self) -> str | None:
        reply = self.client.get_iopub_msg(timeout=BUSY_S)
        assert reply["msg_type"] != "error", reply["content"]
        return reply["content"].get("text")

    def processes(self) -> list[psutil.Process]:
        return marked(self.mark)

    def folders(self) -> list[Path]:
        return list(self.temporary.glob("course_launch_*"))

    def reconnect(self) -> None:
        self.client.wait_for_ready(timeout=BUSY_S)


@pytest.fixture(scope="module")
def kernel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kernel]:
    mark = uuid.uuid4().hex
    temporary = Path(tempfile.mkdtemp(prefix="course_test_"))
    manager = KernelManager(kernel_name="python3")
    manager.start_kernel(env={**os.environ, MARK: mark, "TMPDIR": str(temporary)})
    client = manager.blocking_client()
    client.start_channels()
    kernel = Kernel(manager, client, mark, temporary)
    kernel.reconnect()
    yield kernel
    client.stop_channels()
    manager.shutdown_kernel(now=True)
    wait_for(lambda: kernel.processes() == [])
    shutil.rmtree(temporary)


def test_a_function_from_a_cell(kernel: Kernel) -> None:
    kernel.run("from course_lib import launch\nfactor = 10")
    printed, trace = kernel.run(
        "def scale(number):\n"
        "    import torch.distributed as dist\n"
        "    print('from', dist.get_rank())\n"
        "    return factor * number + dist.get_rank()\n"
        "print(launch.run(scale, 7))"
    )
    assert trace == []
    lines = printed.splitlines()
    assert sorted(lines[:2]) == ["[rank 0] from 0", "[rank 1] from 1"]
    assert lines[2] == "[70, 71]"


def test_an_error_in_a_cells_function_shows_its_lines(kernel: Kernel) -> None:
    printed, trace = kernel.run(
        "def divide():\n    return 1 / (launch.init().rank - 1)  # rank 1 fails\nlaunch.run(divide)"
    )
    text = "\n".join(trace)
    assert text.startswith("RankFailed: rank 1 raised ZeroDivisionError: division by zero\n")
    assert "return 1 / (launch.init().rank - 1)  # rank 1 fails" in text  # the source of the cell
    assert "course_lib/launch" not in text
    assert printed == ""


def test_a_hang_in_a_cells_function_shows_its_lines(kernel: Kernel) -> None:
    _, trace = kernel.run(
        "import time\nstart_s = time.monotonic()\nlaunch.run(abs, 1)\n"
        "def stop():\n    import time\n    time.sleep(50)  # here\n"
        "launch.run(stop, timeout_s=1 + 8 * (time.monotonic() - start_s))"
    )
    assert "in stop\n    time.sleep(50)  # here" in "\n".join(trace)


@needs_signals
def test_an_interrupted_cell(kernel: Kernel) -> None:
    message = kernel.start(HANG, until="hanging")
    before = kernel.processes()
    assert len(before) >= 1 + 1 + 1 + 2 + 2  # kernel, server, keeper, ranks, their workers
    assert len(kernel.folders()) == 1
    kernel.manager.interrupt_kernel()
    printed, trace = kernel.finish(message)
    assert trace == ["Stopped; 2 ranks ended"]
    assert printed.strip() == ""  # no noise from the ranks
    parent = psutil.Process(kernel.manager.provisioner.process.pid)
    kept = {parent, *parent.children()}
    assert set(kernel.processes()) == kept
    assert kernel.folders() == []
    assert kernel.run("print(launch.run(lambda: 1, stream=False))") == ("[1, 1]\n", [])


@needs_signals
def test_a_kernel_restarted_in_order(kernel: Kernel) -> None:
    kernel.start(HANG, until="hanging")
    before = kernel.processes()
    assert len(before) >= 6
    kernel.manager.restart_kernel(now=False)
    assert gone(before)
    assert kernel.folders() == []
    kernel.reconnect()


@needs_signals
def test_an_interrupt_while_the_server_warms_up(kernel: Kernel) -> None:
    message = kernel.client.execute("from course_lib import launch\nlaunch.run(lambda: 1)")
    parent = psutil.Process(kernel.manager.provisioner.process.pid)
    wait_for(lambda: bool(parent.children()))  # the server, which imports torch for seconds
    kernel.manager.interrupt_kernel()
    _, trace = kernel.finish(message)
    assert trace == ["Stopped before any rank started"]
    assert kernel.folders() == []
    assert kernel.run("print(launch.run(lambda: 2))") == ("[2, 2]\n", [])


@needs_signals
def test_a_killed_kernel(kernel: Kernel) -> None:
    kernel.start(HANG, until="hanging")
    before = kernel.processes()
    assert len(before) >= 6
    os.kill(kernel.manager.provisioner.process.pid, signal.SIGKILL)  # this process alone
    assert gone(before)
    no_folders_in(kernel.temporary)
    with pytest.raises(queue.Empty):
        while True:
            kernel.client.get_iopub_msg(timeout=0.1)
