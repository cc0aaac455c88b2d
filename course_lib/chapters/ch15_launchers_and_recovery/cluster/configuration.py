"""Whether this machine can have a Slurm at all."""

import getpass
import os
import secrets
import shutil
import socket
import sys
from pathlib import Path

from course_lib.home import home
from course_lib.launch.two_nodes import search_path
from course_lib.problem import Problem

INSTALL = "apt-get install --no-install-recommends slurm-wlm munge"
PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch")


def obstacle() -> str | None:
    """Why this machine cannot have the cluster, in one sentence; None if it can."""
    if sys.platform != "linux":
        return (
            f"Slurm's daemons are built for Linux and this is {sys.platform}: use a Linux machine"
        )
    missing = [name for name in PROGRAMS if not program(name)]
    if missing:
        return f"{' and '.join(missing)} not found: on Debian or Ubuntu, {INSTALL}"
    return None


def program(name: str) -> str | None:
    """The full path of a program, administrators' folders included; None if there is none."""
    return shutil.which(name, path=search_path())


MARK = "COURSE_CLUSTER"  # in the environment of each daemon: the folder that it belongs to
# A socket's path has at most 107 bytes on Linux, and the longest of ours is
# FOLDER/spool/n1/n1_1000000.4294967295.
_MOST = 70


class Folder:
    """The paths in it. Raises Problem for a path that is too long for Unix sockets."""

    def __init__(self, path: Path) -> None:
        if len(os.fsencode(path)) > _MOST:
            raise Problem(
                f"{path} is too long a path for the sockets of a cluster: set COURSE_HOME to "
                f"a folder of at most {_MOST - len('/cluster')} letters"
            )
        self.path = path
        self.configuration = path / "slurm.conf"  # what SLURM_CONF names
        self.keeper = path / "keeper.pid"  # the id of the process that keeps the daemons
        self.key = path / "munge.key"  # by which daemons and their user recognise each other
        self.socket = path / "munge.socket"  # where munged listens
        self.log = path / "log"  # what each daemon says, a file each
        self.state = path / "state"  # where slurmctld remembers the jobs
        self.spool = path / "spool"  # where slurmd keeps the scripts of running jobs

    def make(self) -> None:
        """Create it, empty, for its owner alone. Raises Problem where that is not allowed."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            for path in (self.path, self.log, self.state, self.spool):
                path.mkdir(mode=0o700)
        except OSError as error:
            raise Problem(
                f"the folder {self.path} cannot be made ({error.strerror}): set COURSE_HOME to a "
                "folder of yours"
            ) from error


def learners() -> Folder:
    """Where `course cluster up` keeps its cluster."""
    return Folder((home() / "cluster").absolute())


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
    controller, *of_nodes = ports
    options = {
        "ClusterName": "course",
        "SlurmctldHost": f"{host}({_LOOPBACK})",
        "SlurmctldPort": controller,
        # The user who starts the cluster is its administrator.
        "SlurmUser": user,
        "SlurmdUser": user,
        "AuthType": "auth/munge",
        "CredType": "cred/munge",
        "AuthInfo": f"socket={folder.socket}",
        **_where_to_listen(),
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
    for node, port in zip(NODES, of_nodes, strict=True):
        where = f"NodeHostname={host} NodeAddr={_LOOPBACK} Port={port}"
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


def _where_to_listen() -> dict[str, str]:
    """What the host's name points to, if that is this machine alone; else Slurm's default.

    That is every network, where the key protects the daemons.
    """
    if not on_loopback():
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
