"""A slow link between the nodes: a network for each, and a limited cable between the two.

n1, slurmctld and munged share the network of their keeper, which has one of its own; n2 has
another. Slurm's own words cross the cable as well. Works as root, and for everybody where the
system allows namespaces of users, in which users keep their own names.
"""

import os
import subprocess

from course_lib.launch.two_nodes import ADDRESSES, LINK, link_limit

# The cable is made on this side; its other end goes to the network of process $1.
_CABLE = """
set -e
ip link set lo up
ip link add $LINK type veth peer name $LINK netns $1
"""
_END = """
set -e
ip link set lo up
ip address add $ADDRESS/24 dev $LINK
tc qdisc add dev $LINK root tbf $LIMIT
ip link set $LINK up
"""


def private_network() -> list[str]:
    """The command that gives a program a network of its own, and the right to set it up."""
    user = [] if os.geteuid() == 0 else ["--user", "--map-current-user", "--keep-caps"]
    return ["unshare", *user, "--net"]


def inside(pid: int) -> list[str]:
    """The command that runs another one in the network of that keeper."""
    user = [] if os.geteuid() == 0 else ["--user", "--preserve-credentials"]
    return ["nsenter", f"--target={pid}", *user, "--net"]


def lay(holder: int, mbit: float) -> None:
    """Lay the cable from this network to that of the process `holder`, which is another.

    Raises subprocess.CalledProcessError with the words of `ip` or `tc`.
    """
    _shell([], _CABLE, {"LINK": LINK}, str(holder))
    there = ["nsenter", f"--target={holder}", "--net"]
    for address, where in zip(ADDRESSES, ([], there), strict=True):
        end = {"LINK": LINK, "ADDRESS": address, "LIMIT": link_limit(mbit)}
        _shell(where, _END, end)


def _shell(where: list[str], script: str, variables: dict[str, str], *arguments: str) -> None:
    command = [*where, "sh", "-c", script, "sh", *arguments]
    subprocess.run(command, env=os.environ | variables, check=True)
