"""Configuration of the Slurm cluster: its prerequisites, its folder and its slurm.conf."""

import getpass
import os
import secrets
import shutil
import socket
import sys
from pathlib import Path

from course_lib.home import of_the_user
from course_lib.launch.two_nodes import search_path
from course_lib.problem import Problem

INSTALL = "apt-get install --no-install-recommends slurm-wlm munge"
PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch")


def obstacle() -> str | None:
    """One sentence that says why the cluster cannot run on this machine; None if it can."""
    if sys.platform != "linux":
        return (
            f"Slurm's daemons are built for Linux and this is {sys.platform}: use a Linux machine"
        )
    missing = [name for name in PROGRAMS if not program(name)]
    if missing:
        return f"{' and '.join(missing)} not found: on Debian or Ubuntu, {INSTALL}"
    return None


def program(name: str) -> str | None:
    """The full path of a program, searched in PATH and the sbin folders; None if not found."""
    return shutil.which(name, path=search_path())


MARK = "COURSE_CLUSTER"  # environment variable of each daemon: the folder of its cluster
# A socket's path has at most 107 bytes on Linux, and the longest of ours is
# FOLDER/spool/n1/n1_1000000.4294967295.
_MOST = 70


class Folder:
    """A cluster's folder and the paths in it. Raises Problem if it is too long for Unix sockets."""

    def __init__(self, path: Path) -> None:
        if len(os.fsencode(path)) > _MOST:
            raise Problem(
                f"{path} is too long a path for the sockets of a cluster: set COURSE_HOME to "
                f"a folder of at most {_MOST - len('/cluster')} letters"
            )
        self.path = path
        self.configuration = path / "slurm.conf"  # the value of SLURM_CONF
        self.keeper = path / "keeper.pid"  # pid of the keeper, the daemons' supervisor
        self.key = path / "munge.key"  # by which daemons and clients authenticate each other
        self.socket = path / "munge.socket"  # where munged listens
        self.log = path / "log"  # the output of each daemon, one file each
        self.state = path / "state"  # where slurmctld saves the jobs
        self.spool = path / "spool"  # where slurmd stores the scripts of running jobs

    def make(self) -> None:
        """Create the folder, private to its owner. Raises Problem if that fails."""
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
    """The folder of the cluster that `course cluster up` starts."""
    return Folder((of_the_user() / "cluster").absolute())


NODES = ("n1", "n2")
CPUS = 2  # per node, as configured; the machine need not have them
# Nodes that exist only in slurm.conf, as large as those of a real cluster: `sbatch --test-only`
# says whether a script would start on them. A job submitted to them would wait forever.
PAPER = "paper"
_PAPER_NODES = f"{PAPER}[1-2048]"
_PAPER_NODE = "CPUs=128 RealMemory=2000000 Gres=gpu:8"
_LOOPBACK = "127.0.0.1"


def write(folder: Folder) -> None:
    """Write slurm.conf and a new munge key, readable only by their owner."""
    _write_private(folder.key, secrets.token_bytes(128))
    _write_private(folder.configuration, text(folder, *free_ports(3)).encode())


def text(folder: Folder, *ports: int) -> str:
    """The content of slurm.conf for these ports: slurmctld's, then one per node."""
    host, user = socket.gethostname().split(".")[0], getpass.getuser()
    controller, *node_ports = ports
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
        # Use the node sizes configured here, not those that slurmd detects.
        "SlurmdParameters": "config_overrides",
        # Control groups would need root.
        "ProctrackType": "proctrack/linuxproc",
        "TaskPlugin": "task/none",
        "SelectType": "select/cons_tres",
        "SelectTypeParameters": "CR_Core",
        # No accounting, and no MPI.
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
    for node, port in zip(NODES, node_ports, strict=True):
        where = f"NodeHostname={host} NodeAddr={_LOOPBACK} Port={port}"
        lines.append(f"NodeName={node} {where} CPUs={CPUS} RealMemory=4000 State=UNKNOWN")
    lines.append(f"PartitionName=debug Nodes={','.join(NODES)} Default=YES MaxTime=INFINITE")
    # The paper nodes are cloud nodes to Slurm: powered off, but able to resume.
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
    """slurm.conf options that restrict the daemons to the loopback interface.

    Empty if the host's name is not on it: Slurm then listens on all networks, behind the munge key.
    """
    if not on_loopback():
        return {}
    return {"CommunicationParameters": "NoInAddrAny,NoCtldInAddrAny"}


def on_loopback() -> bool:
    """Whether this machine's host name resolves to a loopback address."""
    try:
        return socket.gethostbyname(socket.gethostname()).startswith("127.")
    except OSError:
        return False


def free_ports(number: int) -> list[int]:
    """`number` free ports of the loopback interface."""
    sockets = [socket.create_server((_LOOPBACK, 0)) for _ in range(number)]
    ports = [server.getsockname()[1] for server in sockets]
    for server in sockets:
        server.close()
    return ports


def _write_private(path: "os.PathLike[str]", data: bytes) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with open(descriptor, "wb") as file:
        file.write(data)
