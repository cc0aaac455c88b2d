"""The configuration of the cluster: one file that all daemons and commands read.

Options: slurm.schedmd.com/slurm.conf.html; tried with Slurm 22.05.
"""

import getpass
import os
import secrets
import socket

from course_lib.cluster.folder import Folder
from course_lib.launch.two_nodes import ADDRESSES

NODES = ("n1", "n2")
CPUS = 2  # of each node; Slurm counts them, the machine need not have them
# Nodes that exist only here, as large as those of a real cluster: `sbatch --test-only` says whether
# a script would start on them. A job that is really submitted there would wait forever.
PAPER = "paper"
_PAPER_NODES = f"{PAPER}[1-2048]"
_PAPER_NODE = "CPUs=128 RealMemory=2000000 Gres=gpu:8"
_LOOPBACK = "127.0.0.1"


def write(folder: Folder) -> None:
    """Write the configuration and a new key, which only their owner may read."""
    _write_private(folder.key, secrets.token_bytes(128))
    _write_private(folder.configuration, text(folder, *free_ports(3)).encode())


def text(folder: Folder, *ports: int) -> str:
    """slurm.conf for these ports: slurmctld's, and one of each node."""
    host, user = socket.gethostname().split(".")[0], getpass.getuser()
    addresses = ADDRESSES if folder.mbit else [_LOOPBACK] * len(NODES)
    controller, *of_nodes = ports
    options = {
        "ClusterName": "course",
        "SlurmctldHost": f"{host}({addresses[0]})",
        "SlurmctldPort": controller,
        # The user who starts the cluster is its administrator.
        "SlurmUser": user,
        "SlurmdUser": user,
        "AuthType": "auth/munge",
        "CredType": "cred/munge",
        "AuthInfo": f"socket={folder.socket}",
        **_where_to_listen(folder),
        "SlurmctldPidFile": folder.path / "slurmctld.pid",
        "SlurmctldLogFile": folder.log / "slurmctld.log",
        "StateSaveLocation": folder.state,
        "SlurmdPidFile": folder.path / "slurmd-%n.pid",
        "SlurmdLogFile": folder.log / "slurmd-%n.log",
        "SlurmdSpoolDir": folder.spool / "%n",
        # Believe what is written here about the nodes, not what they find.
        "SlurmdParameters": "config_overrides",
        # Control groups would need root.
        "ProctrackType": "proctrack/linuxproc",
        "TaskPlugin": "task/none",
        "SelectType": "select/cons_tres",
        "SelectTypeParameters": "CR_Core",
        # Nobody keeps accounts, and no MPI is set up.
        "JobAcctGatherType": "jobacct_gather/none",
        "AccountingStorageType": "accounting_storage/none",
        "SwitchType": "switch/none",
        "MpiDefault": "none",
        # A node that was down takes jobs again as soon as it reports.
        "ReturnToService": 2,
        # Slurm's own default is 300 s without an answer until a node counts as down.
        "SlurmdTimeout": 5,
        "MessageTimeout": 5,
        "KillWait": 2,
    }
    lines = [f"{name}={value}" for name, value in options.items()]
    for node, address, port in zip(NODES, addresses, of_nodes, strict=True):
        where = f"NodeHostname={host} NodeAddr={address} Port={port}"
        lines.append(f"NodeName={node} {where} CPUs={CPUS} RealMemory=4000 State=UNKNOWN")
    lines.append(f"PartitionName=debug Nodes={','.join(NODES)} Default=YES MaxTime=INFINITE")
    # To Slurm they are machines in a cloud that are off and could be switched on.
    lines += [
        "GresTypes=gpu",
        "SuspendProgram=/bin/true",
        "ResumeProgram=/bin/true",
        "SuspendTime=300",
        f"SuspendExcNodes={','.join(NODES)}",
        f"NodeName={_PAPER_NODES} {_PAPER_NODE} State=CLOUD",
        f"PartitionName={PAPER} Nodes={_PAPER_NODES} MaxTime=INFINITE",
    ]
    return "\n".join(lines) + "\n"


def _where_to_listen(folder: Folder) -> dict[str, str]:
    """What the host's name points to, if that is this machine alone; else Slurm's default.

    That is every network: in that of slow nodes there is nobody else, and in others the key
    protects the daemons.
    """
    if folder.mbit or not on_loopback():
        return {}
    return {"CommunicationParameters": "NoInAddrAny,NoCtldInAddrAny"}


def on_loopback() -> bool:
    """Whether this machine's own name points to this machine alone."""
    try:
        return socket.gethostbyname(socket.gethostname()).startswith("127.")
    except OSError:
        return False


def free_ports(number: int) -> list[int]:
    """Ports of the loopback interface on which nobody listens."""
    with_sockets = [socket.create_server((_LOOPBACK, 0)) for _ in range(number)]
    ports = [each.getsockname()[1] for each in with_sockets]
    for each in with_sockets:
        each.close()
    return ports


def _write_private(path: "os.PathLike[str]", data: bytes) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with open(descriptor, "wb") as file:
        file.write(data)
