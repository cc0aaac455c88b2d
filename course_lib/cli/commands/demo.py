"""`course demo`."""

import argparse
import shlex
import sys

from course_lib.problem import Problem

ABOUT = "run a demo on several ranks"
# Options unknown to this parser are passed to the demo, and so is --help after a demo's name.
TAKES_OTHERS = True
OWN = "each demo has options of its own as well: `course demo NAME --help` shows them"


def add_options(parser: argparse.ArgumentParser) -> None:
    """Which demo, and how it is launched."""
    parser.description = f"{ABOUT}; {OWN}"
    parser.add_argument("name", nargs="?", metavar="NAME", help="which demo, see --list")
    parser.add_argument("-h", "--help", action="store_true", help="show this, or that of a demo")
    parser.add_argument("--list", action="store_true", help="list the demos")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    _add_launching(parser)


def _add_launching(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("how it is launched")
    group.add_argument(
        "--ranks", type=int, default=2, help="number of processes (default: %(default)s)"
    )
    about = "time limit in s (default: %(default)g)"
    group.add_argument("--timeout", type=float, default=120.0, metavar="S", help=about)
    limit = "on two nodes of this machine, half of the ranks on each, joined by MBIT Mbit/s (Linux)"
    group.add_argument("--two-nodes", type=float, metavar="MBIT", help=limit)
    record = "keep where each rank is in FOLDER, for `course diagnose FOLDER`"
    group.add_argument("--record", metavar="FOLDER", help=record)
    about = "print it for another launcher instead: trainjob (Kubernetes)"
    group.add_argument("--emit", metavar="ENGINE", help=about)


def run(arguments: argparse.Namespace) -> int:
    """List the demos, or run one."""
    from course_lib import demos

    if arguments.help and arguments.name is None:
        arguments.parser.print_help()
        return 0
    if arguments.list:
        width = max(map(len, demos.DEMOS))
        for name, line in demos.DEMOS.items():
            print(f"{name:<{width}}  {line}")
        return 0
    if arguments.name is None:
        raise Problem("no demo was named: write one of " + ", ".join(demos.DEMOS))
    flags = {"--json": arguments.json, "--help": arguments.help}
    argv = [*arguments.others, *(option for option, is_set in flags.items() if is_set)]
    run_it = _run_demo if arguments.two_nodes is None else _run_on_two_nodes
    if arguments.emit is not None:
        run_it = _emit
    run_it(arguments, argv)
    return 0


def _run_demo(arguments: argparse.Namespace, argv: list[str]) -> None:
    from course_lib import demos, launch
    from course_lib.demos.shared.options import where_to_look
    from course_lib.demos.shared.result import render

    options = demos.parse(arguments.name, argv, _add_launching)
    line = launch.torchrun_command(demos.__name__, arguments.ranks, [arguments.name, *argv])
    if arguments.record:
        line = f"COURSE_RECORD={shlex.quote(arguments.record)} {line}"
    # With --json only the result goes to stdout, so that a program can read it.
    print(f"the same by torchrun: {line}", file=sys.stderr if arguments.json else sys.stdout)
    sys.stdout.flush()
    try:
        result = demos.run(
            arguments.name,
            ranks=arguments.ranks,
            timeout_s=arguments.timeout,
            stream=not arguments.json,
            **({"record": arguments.record} if arguments.record else {}),
            **vars(options),
        )
    except launch.RankFailed as failure:
        see = where_to_look(failure.traceback, arguments.record, getattr(options, "parts", ""))
        raise Problem(f"rank {failure.rank} {failure.reason}: {see}") from failure
    print(render(result, arguments.json))


def _emit(arguments: argparse.Namespace, argv: list[str]) -> None:
    from course_lib import demos
    from course_lib.emitting import trainjob
    from course_lib.validation import choice, whole

    choice("emit", arguments.emit, ("trainjob",))
    whole("ranks", arguments.ranks)
    demos.parse(arguments.name, argv, _add_launching)
    files = trainjob.demo_files(arguments.name, argv, arguments.ranks)
    print("\n".join(files.values()), end="")


def _run_on_two_nodes(arguments: argparse.Namespace, argv: list[str]) -> None:
    from course_lib import demos, launch
    from course_lib.launch.two_nodes import nodes_command_line

    if arguments.record:
        raise Problem("--record does not go with --two-nodes: leave one of them out")
    if arguments.ranks < 2 or arguments.ranks % 2:
        raise Problem(f"ranks {arguments.ranks} cannot be halved: give --ranks 2, or 4")
    each, mbit, limit_s = arguments.ranks // 2, arguments.two_nodes, arguments.timeout
    demos.parse(arguments.name, argv, _add_launching)
    program = [arguments.name, *argv]
    line = nodes_command_line(demos.__name__, each, program)
    print(f"on each node: {line}", file=sys.stderr if arguments.json else sys.stdout)
    sys.stdout.flush()
    try:
        first, second = launch.run_on_two_nodes(demos.__name__, program, each, mbit, limit_s)
    except launch.NodesFailed as error:
        raise Problem(str(error)) from error
    # With --json print only the result, which is node 0's last line.
    print(first.splitlines()[-1] if arguments.json else (second + first).rstrip())
