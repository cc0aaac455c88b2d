"""The hybrid of RPC and DDP: the same losses and weights as one process, and nothing left."""

import json
import os
import tempfile

import pytest

from course_lib import demos, launch
from course_lib.chapters.ch14_parameter_servers.demos import hybrid
from course_lib.chapters.ch14_parameter_servers.demos.hybrid import (
    Counted,
    interface_bytes,
)
from course_lib.launch import two_nodes

SMALL = {"model": "128x2", "steps": 4, "batch": 5}  # trainers with 3 and 2 samples


def test_equal_to_one_process_and_nothing_left():
    before = {name for name in os.listdir(tempfile.gettempdir()) if "rpc" in name}
    result = demos.run("hybrid", ranks=4, stream=False, **SMALL)
    (version,) = result.versions
    dense = 4 * (16 * 64 + 64 + 64 * 128 + 128)
    assert version.sent == {"all-reduce": (1, dense)}
    assert version.losses[-1] < version.losses[0]
    check_order(result.events)
    assert {name for name in os.listdir(tempfile.gettempdir()) if "rpc" in name} <= before


def check_order(events):
    """What must happen before what; between the trainers everything may be in any order."""
    assert events == sorted(events, key=lambda event: event.at_s)
    at = {}
    for event in events:
        at.setdefault((event.process, event.what), []).append(event.at_s)
    assert set(at) == {
        *((trainer, what) for trainer in ("trainer0", "trainer1") for what in OF_A_TRAINER),
        *(("server", what) for what in OF_THE_SERVER),
    }
    for trainer in ("trainer0", "trainer1"):
        once = {what: at[trainer, what] for what in OF_A_TRAINER}
        assert {len(times) for times in once.values()} == {1}
        (asks,), (gets,), (loss,), (dense,), (starts,), (ends,), (leaves,), (step,) = once.values()
        assert asks < gets < loss < dense < starts < min(ends, leaves)
        assert ends < step
    looks, added, stepped = (at["server", what] for what in OF_THE_SERVER)
    assert (len(looks), len(added), len(stepped)) == (2, 2, 2)
    leaves = [at[trainer, hybrid.LEAVES][0] for trainer in ("trainer0", "trainer1")]
    assert min(leaves) < added[0] and max(leaves) < added[1] < stepped[0]
    assert max(looks) < stepped[0]  # no row changes before all have been looked up


OF_A_TRAINER = (
    hybrid.ASKS,
    hybrid.GETS,
    hybrid.LOSS,
    hybrid.DENSE,
    hybrid.STARTS,
    hybrid.ENDS,
    hybrid.LEAVES,
    hybrid.DENSE_STEP,
)
OF_THE_SERVER = (hybrid.LOOKS_UP, hybrid.TABLE_GRADIENT, hybrid.TABLE_STEP)


@pytest.mark.skipif(
    two_nodes.obstacle() is not None, reason="this machine cannot have two nodes: no namespaces"
)
def test_a_link_counts_what_rpc_sends():
    argv = ["hybrid", "--json", "--model", "128x2", "--steps", "4", "--batch", "32"]
    argv += ["--hidden", "64"]
    first, _ = launch.run_on_two_nodes("course_lib.demos", argv, 2, mbit=1000, timeout_s=100)
    result = json.loads(first.splitlines()[-1])
    rows = 32 * 16
    assert result["pulled_bytes"] == rows * 64 * 4
    assert result["pushed_bytes"] == rows * (64 * 4 + 2 * 8)
    received, sent = result["link"]
    # Headers and acknowledgements take 7 %, small calls some 15 kB an update.
    assert 1.0 < received / result["pulled_bytes"] < 1.5
    assert 1.0 < sent / result["pushed_bytes"] < 1.5


# As Linux prints it: eight columns of what came in, eight of what went out.
PRINTED = """Inter-|   Receive                        |  Transmit
 face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs
    lo: 1000      10    0    0    0     0          0         0     1000      10    0
 wire0:7700       11    1    2    3     4          5         6     8400      12    0
"""


def test_columns_of_the_kernel(tmp_path, monkeypatch):
    file = tmp_path / "dev"
    monkeypatch.setattr(hybrid, "_COUNTERS", file)
    assert interface_bytes("wire0") is None  # no such file: not Linux
    file.write_text(PRINTED)
    assert interface_bytes("wire0") == Counted(received=7700, sent=8400)
    assert interface_bytes("wire") is None
