"""The program inside the namespaces of `two_nodes`: makes the second network, the link, the nodes.

It is the first process inside, so everything else ends with it.
"""

import math
import os
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path

from course_lib.launch.node_plan import NodePlan

_POLL_S = 0.05
_TRIES = 40  # to remove a folder
_GRACE_S = 1.0  # after a failure: the other node may prove to be the cause

# A node sets up its end of the link when it is told to, and becomes torchrun.
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


def main(folder: Path) -> int:
    """Run both nodes to their end; 0, or 1 and one line that names the node that failed."""
    threading.Thread(target=_end_with_parent, args=(folder,), daemon=True).start()
    plan = NodePlan.read(folder)
    nodes = [_start(plan, node, folder) for node in (0, 1)]
    # The second end goes to the network of the second node, which is known by its process.
    ends = f"name {plan.link} type veth peer name {plan.link} netns {nodes[1].pid}"
    subprocess.run(["ip", "link", "add", *ends.split()], check=True)
    for node in nodes:
        assert node.stdin is not None
        node.stdin.write("go\n")
        node.stdin.close()
    return _follow(nodes)


def _end_with_parent(folder: Path) -> None:
    sys.stdin.read()  # returns when the parent closes the pipe, or dies
    for _ in range(_TRIES):  # the nodes still live, and may write into the folder while it goes
        shutil.rmtree(folder, ignore_errors=True)
        if not folder.exists():
            break
        time.sleep(_POLL_S)
    os._exit(1)


def _start(plan: NodePlan, node: int, folder: Path) -> subprocess.Popen[str]:
    own_network = ["unshare", "--net"] if node else []  # node 0 stays in this one
    own = {
        "NODE_ADDRESS": plan.addresses[node],
        "NODE_LINK": plan.link,
        "NODE_LIMIT": plan.limit,
        "NODE_OUT": str(folder / f"out{node}"),
        "NODE_ERR": str(folder / f"err{node}"),
        "TMPDIR": str(folder),  # torchrun leaves folders behind
    }
    process = subprocess.Popen(
        [*own_network, "sh", "-c", _NODE, "sh", *plan.commands[node]],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=os.environ | plan.environment | own,
        text=True,
    )
    assert process.stdout is not None
    if process.stdout.readline() != "ready\n":
        raise RuntimeError(f"node {node} did not start")
    return process


def _follow(nodes: list[subprocess.Popen[str]]) -> int:
    """Return when both nodes have ended, or soon after the first failure."""
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


if __name__ == "__main__":
    # Not sys.exit: the thread that waits for the parent still reads.
    code = main(Path(sys.argv[1]))
    sys.stdout.flush()
    os._exit(code)
