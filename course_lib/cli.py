"""The command `course`. Each subcommand imports what it needs when it runs, so that help is quick.

Exit codes: 0 done, 1 something did not pass, 2 the command could not be carried out.
"""

import argparse
import json
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path

from course_lib import __version__, theory_commands
from course_lib.problem import Problem

Run = Callable[[argparse.Namespace, list[str]], int]


def main(argv: Sequence[str] | None = None) -> int:
    """Run one subcommand and return the exit code; a Problem becomes one sentence on stderr."""
    parser = _parser()
    arguments, rest = parser.parse_known_args(argv)
    if rest and arguments.command != "demo":
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    if arguments.command is None:
        parser.print_help()
        return 0
    try:
        return arguments.run(arguments, rest)
    except Problem as problem:
        print(f"course {arguments.command}: {problem}", file=sys.stderr)
        return 2
    except BrokenPipeError:
        # `course plan … | head` has read enough; what is still to be flushed goes nowhere.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        print(f"course {arguments.command}: interrupted", file=sys.stderr)
        return 130


def _parser() -> argparse.ArgumentParser:
    # Without abbreviations, `--step 5` can never be taken for another option.
    parser = argparse.ArgumentParser(
        prog="course", description="How large models are trained.", allow_abbrev=False
    )
    parser.add_argument("--version", action="version", version=f"course {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")

    def add(name: str, run: Run, about: str) -> argparse.ArgumentParser:
        command = commands.add_parser(name, help=about, description=about, allow_abbrev=False)
        command.set_defaults(run=run)
        return command

    lab = add("lab", _lab, "open JupyterLab at the first notebook")
    lab.add_argument("--port", type=int, help="listen on this port instead of the next free one")
    lab.add_argument("--no-browser", action="store_true", help="print the address, open nothing")
    _add_demo_options(add("demo", _demo, "run a demo on several ranks; other options go to it"))
    check = add("check", _check, "grade a notebook of exercises/ without changing it")
    check.add_argument("notebook", type=Path, metavar="NOTEBOOK", help="the notebook to grade")
    done = add("progress", _progress, "show what is done")
    done.add_argument("--reset", action="store_true", help="begin again; asks first")
    doctor = add("doctor", _doctor, "say what is missing or slow on this machine")
    doctor.add_argument("--quick", action="store_true", help="do not start ranks")
    build = add("build", _build, "write the notebooks from chapters/ (for contributors)")
    build.add_argument("--check", action="store_true", help="write nothing, fail if stale")
    for command in (check, done, doctor):
        command.add_argument("--json", action="store_true", help="print JSON")
    theory_commands.add_commands(add)
    return parser


def _add_demo_options(demo: argparse.ArgumentParser) -> None:
    demo.add_argument("name", nargs="?", metavar="NAME", help="which demo, see --list")
    demo.add_argument("--ranks", type=int, default=2, help="number of processes (default: 2)")
    demo.add_argument("--timeout", type=float, default=120.0, metavar="S", help="time limit in s")
    limit = "on two nodes of this machine, half of the ranks on each, joined by MBIT Mbit/s (Linux)"
    demo.add_argument("--two-nodes", type=float, metavar="MBIT", help=limit)
    demo.add_argument("--list", action="store_true", help="list the demos")
    demo.add_argument("--json", action="store_true", help="print the result as JSON")


def _lab(arguments: argparse.Namespace, _rest: list[str]) -> int:
    from course_lib import lab

    return lab.open_lab(arguments.port, browser=not arguments.no_browser)


def _demo(arguments: argparse.Namespace, rest: list[str]) -> int:
    from course_lib import demos

    if arguments.list:
        width = max(map(len, demos.DEMOS))
        for name, line in demos.DEMOS.items():
            print(f"{name:<{width}}  {line}")
        return 0
    if arguments.name is None:
        raise Problem("no demo was named: write one of " + ", ".join(demos.DEMOS))
    argv = [*rest, "--json"] if arguments.json else rest
    run = _run_demo if arguments.two_nodes is None else _run_on_two_nodes
    run(arguments, argv)
    return 0


def _run_demo(arguments: argparse.Namespace, argv: list[str]) -> None:
    from course_lib import demos, launch
    from course_lib.demos.shared.command import render

    try:
        options = demos.parse(arguments.name, argv)
        program = [arguments.name, *argv]
        line = launch.torchrun_command(demos.__name__, arguments.ranks, program)
        # Of JSON nothing but the result goes to stdout, so that a program can read it.
        print(f"the same by torchrun: {line}", file=sys.stderr if arguments.json else sys.stdout)
        sys.stdout.flush()
        result = demos.run(
            arguments.name,
            ranks=arguments.ranks,
            timeout_s=arguments.timeout,
            stream=not arguments.json,
            **vars(options),
        )
    except (ValueError, MemoryError) as error:
        raise Problem(str(error)) from error
    except launch.RankFailed as failure:
        raise Problem(f"rank {failure.rank} {failure.reason}: see `course doctor`") from failure
    print(render(result, arguments.json))


def _run_on_two_nodes(arguments: argparse.Namespace, argv: list[str]) -> None:
    from course_lib import demos, launch
    from course_lib.launch.two_nodes import nodes_command_line

    if arguments.ranks < 2 or arguments.ranks % 2:
        raise Problem(f"ranks {arguments.ranks} cannot be halved: give --ranks 2, or 4")
    each, mbit, limit_s = arguments.ranks // 2, arguments.two_nodes, arguments.timeout
    try:
        demos.parse(arguments.name, argv)
        program = [arguments.name, *argv]
        line = nodes_command_line(demos.__name__, each, program)
        print(f"on each node: {line}", file=sys.stderr if arguments.json else sys.stdout)
        sys.stdout.flush()
        first, second = launch.run_on_two_nodes(demos.__name__, program, each, mbit, limit_s)
    except (ValueError, launch.NodesFailed) as error:
        raise Problem(str(error)) from error
    # Of JSON nothing but the result, which node 0 prints last.
    print(first.splitlines()[-1] if arguments.json else (second + first).rstrip())


def _check(arguments: argparse.Namespace, _rest: list[str]) -> int:
    from course_lib.checking.notebook import grade_notebook

    rows = grade_notebook(arguments.notebook)
    passed = sum(row.status == "pass" for row in rows)
    if arguments.json:
        exercises = [asdict(row) for row in rows]
        _print_json({"passed": passed, "total": len(rows), "exercises": exercises})
    else:
        print("\n".join(row.line for row in rows))
        print(f"{passed} of {len(rows)} exercises passed")
    return 0 if passed == len(rows) else 1


def _progress(arguments: argparse.Namespace, _rest: list[str]) -> int:
    from course_lib.checking import report

    if arguments.reset:
        return _reset()
    data = report.summary()
    if arguments.json:
        _print_json(data)
    else:
        print(report.as_text(data))
    return 0


def _reset() -> int:
    from course_lib.checking import progress

    if not progress.path().exists():
        print("There is no progress yet: nothing to reset.")
        return 0
    try:
        answer = input(f"Begin again and set {progress.path()} aside? Type yes: ")
    except EOFError:
        answer = ""
    if answer.strip().casefold() != "yes":
        raise Problem("nothing was reset: type yes when asked to begin again")
    print(f"The old progress is kept as {progress.set_aside('reset')}.")
    return 0


def _doctor(arguments: argparse.Namespace, _rest: list[str]) -> int:
    from course_lib import doctor

    findings = doctor.examine(start_ranks=not arguments.quick)
    if arguments.json:
        _print_json([asdict(finding) for finding in findings])
    else:
        print("\n".join(finding.line for finding in findings))
    return 1 if any(finding.status == "missing" for finding in findings) else 0


def _build(arguments: argparse.Namespace, _rest: list[str]) -> int:
    from course_lib import build

    root = Path(__file__).resolve().parents[1]
    if arguments.check:
        faults = build.compare(root)
        for fault in faults:
            print(fault.line(root), file=sys.stderr)
        if faults:
            print("the notebooks do not match chapters/: run `course build`", file=sys.stderr)
        return 1 if faults else 0
    outcomes = build.build(root)
    changed = [outcome for outcome in outcomes if outcome.state != "current"]
    for outcome in changed:
        print(outcome.line(root))
    print(f"{len(outcomes) - len(changed)} of {len(outcomes)} notebooks were up to date")
    return 0


def _print_json(data: object) -> None:
    print(json.dumps(data, indent=1, ensure_ascii=False))


if __name__ == "__main__":
    sys.exit(main())
