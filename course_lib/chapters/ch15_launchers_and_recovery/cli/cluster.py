"""`course cluster`."""

import argparse
import shlex
from dataclasses import asdict

from course_lib.cli.options import Answer, add_json_option
from course_lib.problem import Problem

ABOUT = "a Slurm of two nodes on this machine: up, status, down, and the loss of a node"


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the action, `--node` and `--json`."""
    about = (
        "up: start it, or the nodes that are down; status: its nodes and jobs; down: end it and "
        "its jobs; kill: pull the plug of a node; requeue: lose a node while a job trains, and "
        "watch Slurm and the job recover (a minute)"
    )
    parser.add_argument("action", choices=ACTIONS, metavar="ACTION", help=about)
    about = "which node kill and requeue take (default: n2)"
    parser.add_argument("--node", choices=("n1", "n2"), default="n2", help=about)
    add_json_option(parser)


def run(arguments: argparse.Namespace) -> Answer:
    """Run the action and describe the result; `status` exits with 1 if the cluster is down."""
    return ACTIONS[arguments.action](arguments)


def _up(_: argparse.Namespace) -> Answer:
    from course_lib.chapters.ch15_launchers_and_recovery import cluster

    slurm = cluster.up()
    nodes = slurm.nodes()
    lines = [
        _nodes(nodes),
        "Tell your shell which Slurm you mean, and submit a job:",
        "",
        f"    export SLURM_CONF={shlex.quote(str(slurm.folder.configuration))}",
        '    sbatch --nodes=2 --wrap "srun hostname"',
        "",
        "`course cluster down` ends it.",
    ]
    data = {"slurm_conf": str(slurm.folder.configuration), "nodes": nodes}
    return Answer("\n".join(lines), data)


def _status(_: argparse.Namespace) -> Answer:
    from course_lib.chapters.ch15_launchers_and_recovery import cluster

    slurm = cluster.status()
    if slurm is None:
        return Answer("the cluster is down: `course cluster up` starts it", None, 1)
    nodes, jobs = slurm.nodes(), slurm.jobs()
    lines = [_nodes(nodes)]
    for job in jobs:
        reason = "" if job.reason == "None" else f" ({job.reason})"
        lines.append(f"job {job.number}, {job.name}: {job.state.lower()}{reason}")
    if not jobs:
        lines.append("no jobs")
    conf = str(slurm.folder.configuration)
    lines.append(f"SLURM_CONF={conf}")
    data = {"slurm_conf": conf, "nodes": nodes, "jobs": [vars(job) for job in jobs]}
    return Answer("\n".join(lines), data)


def _down(_: argparse.Namespace) -> Answer:
    from course_lib.chapters.ch15_launchers_and_recovery import cluster

    existed = cluster.down()
    ended = "the cluster is down: unset SLURM_CONF where you have set it"
    return Answer(ended if existed else "there was no cluster", {"ended": existed})


def _kill(arguments: argparse.Namespace) -> Answer:
    from course_lib.chapters.ch15_launchers_and_recovery import cluster

    slurm = cluster.status()
    if slurm is None:
        raise Problem("the cluster is down, start it by `course cluster up`")
    slurm.kill_node(arguments.node)
    text = f"node {arguments.node} is dead, which Slurm will notice in about 15 s: see `course "
    return Answer(text + "cluster status`; `course cluster up` repairs it", slurm.nodes())


def _requeue(arguments: argparse.Namespace) -> Answer:
    from course_lib.chapters.ch15_launchers_and_recovery import cluster

    def tell(event: cluster.Event) -> None:
        print(event, flush=True)

    if not arguments.json:
        print("first the job without a fault, then the same with one", flush=True)
    done = cluster.requeue(node=arguments.node, tell=None if arguments.json else tell)
    return Answer(done.summary(), asdict(done))


def _nodes(nodes: dict[str, str]) -> str:
    return ", ".join(f"node {name} is {state}" for name, state in nodes.items())


ACTIONS = {"up": _up, "status": _status, "down": _down, "kill": _kill, "requeue": _requeue}
