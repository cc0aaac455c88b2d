"""Two nodes on one machine: torchrun twice, in two networks joined by a rate-limited link.

Networks and processes are in Linux namespaces, which the kernel removes with their first process:
a failure, an interrupt or the death of this process leaves nothing behind. Works as root, and for
any user if the system allows user namespaces.
"""

import math
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from course_lib import validation
from course_lib.launch.descendants import fresh_python
from course_lib.launch.errors import Stop, uninterrupted
from course_lib.launch.job import TIMEOUT_VARIABLE
from course_lib.launch.limits import MAX_RANKS, threads_per_rank

_POLL_S = 0.05
_TRIES = 40  # to remove a folder
_GRACE_S = 1.0  # after a failure: the other node may turn out to be the cause

ADDRESSES = ("10.77.0.1", "10.77.0.2")  # private to these two networks
LINK = "wire0"  # the name of the link's interface on each node
# On "go", a node sets up its end of the link, then execs torchrun.
_NODE = """
set -e
echo ready
read go
ip link set lo up
ip address add "$NODE_ADDRESS/24" dev "$NODE_LINK"
tc qdisc add dev "$NODE_LINK" root tbf $NODE_LIMIT
ip link set "$NODE_LINK" up
exec "$@" >"$NODE_OUT" 2>"$NODE_ERR"
"""


def inside(path: str, commands: Sequence[Sequence[str]], limit: str) -> NoReturn:
    """Run both nodes, as the first process in the namespaces; all other processes end with it.

    `commands`: of node 0 and node 1; `limit`: arguments of `tc qdisc … tbf`. Exits with code 0, or
    with 1 after a line that names the failed node.
    """
    folder = Path(path)
    threading.Thread(target=_end_with_parent, args=(folder,), daemon=True).start()
    nodes = [_start(node, commands[node], limit, folder) for node in (0, 1)]
    # The peer interface goes into the network namespace of node 1, identified by its pid.
    veth = f"name {LINK} type veth peer name {LINK} netns {nodes[1].pid}"
    subprocess.run(["ip", "link", "add", *veth.split()], check=True)
    for node in nodes:
        assert node.stdin is not None
        node.stdin.write("go\n")
        node.stdin.close()
    code = _follow(nodes)
    sys.stdout.flush()
    os._exit(code)  # not sys.exit: the thread that waits for the parent is still in read()


def _end_with_parent(folder: Path) -> None:
    sys.stdin.read()  # returns when the parent closes the pipe, or dies
    for _ in range(_TRIES):  # the nodes still run, and may write while the folder is removed
        shutil.rmtree(folder, ignore_errors=True)
        if not folder.exists():
            break
        time.sleep(_POLL_S)
    os._exit(1)


def _start(node: int, command: Sequence[str], limit: str, folder: Path) -> subprocess.Popen[str]:
    own_network = ["unshare", "--net"] if node else []  # node 0 uses the current namespace
    own = {
        "NODE_ADDRESS": ADDRESSES[node],
        "NODE_LINK": LINK,
        "NODE_LIMIT": limit,  # arguments of `tc qdisc … tbf`
        "NODE_OUT": str(folder / f"out{node}"),
        "NODE_ERR": str(folder / f"err{node}"),
        "TMPDIR": str(folder),  # torchrun leaves folders behind
    }
    process = subprocess.Popen(
        [*own_network, "sh", "-c", _NODE, "sh", *command],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=os.environ | own,
        text=True,
    )
    assert process.stdout is not None
    if process.stdout.readline() != "ready\n":
        raise RuntimeError(f"node {node} did not start")
    return process


def _follow(nodes: list[subprocess.Popen[str]]) -> int:
    """Wait until both nodes exit, or until soon after the first failure; the exit code."""
    first, until_s = None, math.inf
    while True:
        codes = [node.poll() for node in nodes]
        if codes == [0, 0]:
            return 0
        failed = [node for node, code in enumerate(codes) if code]
        if failed and first is None:
            first, until_s = failed[0], time.monotonic() + _GRACE_S
        if first is not None and (None not in codes or time.monotonic() > until_s):
            print(f"node {first} ended with exit code {codes[first]}", flush=True)
            return 1
        time.sleep(_POLL_S)


_PORT = 29500
_NEEDED = {"unshare": "util-linux", "ip": "iproute2", "tc": "iproute2"}
# Bytes that may pass at full speed in a burst: more than a packet, so that the kernel's timers keep
# up, and far less than a tensor, or small ones would not be limited.
_BURST_S, _BURST_BYTES = 0.0001, 4 * 1024
_LEAVE_S = 5.0
_TAIL = 15  # lines of a node's output in an error


class NodesFailed(RuntimeError):
    """The nodes could not be created, one of them failed, or they ran out of time."""


def run_on_two_nodes(
    module: str,
    argv: Sequence[str] = (),
    ranks_per_node: int = 1,
    mbit: float = 200.0,
    timeout_s: float = 120.0,
) -> list[str]:
    """Run `module` under torchrun on two nodes and return the stdout of each.

    The link carries `mbit` · 10^6 bit/s each way. Ranks run on the CPU: both nodes would see the
    same GPUs. Raises ValueError for bad arguments and NodesFailed, with the reason, if this
    machine cannot do it, if a node fails, or after `timeout_s` seconds.
    """
    validation.whole("ranks_per_node", ranks_per_node, most=MAX_RANKS // 2)
    validation.number("timeout_s", timeout_s, least=0.1, most=86_400)
    limit, ranks = link_limit(mbit), 2 * ranks_per_node
    if reason := obstacle():
        raise NodesFailed(f"two nodes are not possible on this machine: {reason}")
    commands = [node_command(module, ranks_per_node, node, argv) for node in (0, 1)]
    environment = {
        **{f"{user}_SOCKET_IFNAME": LINK for user in ("GLOO", "NCCL", "TP")},
        "CUDA_VISIBLE_DEVICES": "",
        "OMP_NUM_THREADS": str(threads_per_rank(ranks)),
        TIMEOUT_VARIABLE: str(timeout_s),
        "PATH": search_path(),
    }
    with (
        uninterrupted() as stop,
        tempfile.TemporaryDirectory(prefix="course_nodes_", ignore_cleanup_errors=True) as path,
    ):
        call = f"inside({path!r}, {commands!r}, {limit!r})"
        program = fresh_python(f"from course_lib.launch.two_nodes import inside; {call}")
        _run(program, environment, Path(path), timeout_s, stop, ranks)
        return [_text(Path(path) / f"out{node}") for node in (0, 1)]


def node_command(
    module: str, ranks_per_node: int, node: int, argv: Sequence[str] = ()
) -> list[str]:
    """The torchrun command of one node; on real machines only the address would differ."""
    where = ["--nnodes=2", f"--node-rank={node}", f"--nproc-per-node={ranks_per_node}"]
    meeting = [f"--master-addr={ADDRESSES[0]}", f"--master-port={_PORT}"]
    launcher = [sys.executable, "-m", "torch.distributed.run"]
    return [*launcher, *where, *meeting, "-m", module, *argv]


def nodes_command_line(module: str, ranks_per_node: int, argv: Sequence[str] = ()) -> str:
    """The command to type on both nodes, with R for the node rank."""
    line = shlex.join(node_command(module, ranks_per_node, 0, argv))
    return line.replace("--node-rank=0", "--node-rank=R")


def obstacle() -> str | None:
    """Why this machine cannot run two nodes, as a clause; None if it can."""
    if sys.platform != "linux":
        return f"only Linux has network namespaces and this is {sys.platform}"
    for program, package in _NEEDED.items():
        if not shutil.which(program, path=search_path()):
            return f"the command {program!r} was not found, install {package}"
    pair = "ip link add name near type veth peer name far && tc qdisc add dev near root tbf"
    trial = ["sh", "-c", f"{pair} rate 1mbit burst 128kb latency 100ms"]
    environment = os.environ | {"PATH": search_path()}
    done = subprocess.run([*_unshare(), *trial], env=environment, capture_output=True, text=True)
    if done.returncode:
        said = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        return f"namespaces with a limited link are refused ({said[-1]}), try it as root"
    return None


def search_path() -> str:
    """PATH with /usr/sbin and /sbin, which Debian's ordinary users do not have on theirs."""
    return os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"])


def link_limit(mbit: float) -> str:
    """The arguments of `tc qdisc … tbf` that limit a link to `mbit` · 10^6 bit/s.

    Raises ValueError for a rate that the kernel's shaper cannot hold.
    """
    # Above 30 Gbit/s the shaper itself is the bottleneck; below 1 Mbit/s startup takes minutes.
    validation.number("mbit", mbit, least=1, most=30_000)
    rate = round(mbit * 1e6)
    burst = max(_BURST_BYTES, round(rate / 8 * _BURST_S))
    return f"rate {rate}bit burst {burst} latency 100ms"


def _unshare() -> list[str]:
    """The command that runs a program in new network and PID namespaces.

    Users other than root are mapped to root inside only.
    """
    user = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
    return ["unshare", *user, "--net", "--pid", "--fork", "--kill-child"]


def _run(
    program: list[str],
    environment: dict[str, str],
    folder: Path,
    timeout_s: float,
    stop: Stop,
    ranks: int,
) -> None:
    """Start the namespaces, wait until they end, and always kill them in the end."""
    with open(folder / "said", "wb") as output:
        # The namespaces live as long as this pipe is open. A session of their own keeps Ctrl-C away
        # from them, so that everything is always ended in the same order.
        first = subprocess.Popen(
            [*_unshare(), *program],
            env=os.environ | environment,
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    until_s = time.monotonic() + timeout_s
    try:
        while first.poll() is None:
            stop.obey(ranks)
            if time.monotonic() > until_s:
                tails = "\n".join(_tail(folder / f"err{node}") for node in (0, 1))
                raise NodesFailed(
                    f"the nodes had no result within {timeout_s:g} s: allow more time, or a faster"
                    f" link\n\n{tails}".rstrip()
                )
            time.sleep(_POLL_S)
    finally:
        _end(first)
    if first.returncode:
        raise NodesFailed(_failure(folder))


def _end(first: subprocess.Popen[bytes]) -> None:
    """End the first process and wait for it: the kernel kills all others with it."""
    assert first.stdin is not None
    first.stdin.close()
    try:
        first.wait(_LEAVE_S)
    except subprocess.TimeoutExpired:
        first.kill()
        first.wait()


def _failure(folder: Path) -> str:
    """The error text: which node failed, and the last lines of its stderr."""
    said = _text(folder / "said").strip() or "the nodes ended without a word"
    tails = (_tail(folder / f"err{node}") for node in (0, 1) if said.startswith(f"node {node} "))
    return f"{said}\n\n{next(tails, '')}".rstrip()


def _tail(path: Path) -> str:
    """The last lines before torchrun's summary, which would hide the cause."""
    lines = _text(path).splitlines()
    summary = (number for number, line in enumerate(lines) if "failed (exitcode" in line)
    return "\n".join(lines[: next(summary, None)][-_TAIL:])


def _text(path: Path) -> str:
    return path.read_text(errors="replace") if path.exists() else ""
