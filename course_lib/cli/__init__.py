"""The command `course`: each file in `commands/`, or in `cli/` of a chapter, is a subcommand.

A subcommand imports what it needs when it runs, so that help is fast. Exit codes: 0 success,
1 something did not pass, 2 the command could not be carried out.
"""

import argparse
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Protocol, cast

from course_lib import __version__, chapters, home
from course_lib.arguments import Parser, never_refuse
from course_lib.cli.options import Answer
from course_lib.problem import Problem

_FOLDER = Path(__file__).parent


class Command(Protocol):
    """The interface of a subcommand's module.

    With TAKES_OTHERS it gets the unknown options in `arguments.others`, and shows its help itself.
    """

    ABOUT: str

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        """Add the command's own options."""

    def run(self, arguments: argparse.Namespace) -> Answer | int:
        """Run the command; return an answer to be printed, or the exit code.

        Problem, ValueError and MemoryError are printed as one sentence on stderr.
        """


def main(argv: Sequence[str] | None = None) -> int:
    """Run one subcommand and return the exit code; errors are one sentence on stderr."""
    never_refuse()
    argv = sys.argv[1:] if argv is None else argv
    try:
        return _run(argv)
    except (Problem, ValueError, MemoryError) as problem:
        print(f"course {argv[0]}: {problem}", file=sys.stderr)
        return 2
    except BrokenPipeError:
        # `course plan … | head` has closed the pipe: discard what is still to be flushed.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt as stopped:  # from a launch, its text has the number of ranks
        print(f"course {argv[0]}: {str(stopped) or 'interrupted'}", file=sys.stderr)
        return 130


def _run(argv: Sequence[str]) -> int:
    parser = _parser()
    arguments, others = parser.parse_known_args(argv)
    if others and not arguments.takes_others:
        arguments.parser.refuse(others)
    if arguments.command is None:
        parser.print_help()
        return 0
    arguments.others = others
    if arguments.command not in ("start", "upgrade") and (note := home.other_edition()):
        print(f"[note] {note}", file=sys.stderr)
    result = cast(Command, arguments.module).run(arguments)
    return result.say(arguments.json) if isinstance(result, Answer) else result


def _parser() -> Parser:
    parser = Parser(prog="course", description="How large models are trained.")
    parser.add_argument("--version", action="version", version=f"course {__version__}")
    parser.set_defaults(parser=parser, takes_others=False)
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND")
    here = [f"{__name__}.commands.{path.stem}" for path in _FOLDER.glob("commands/[a-z]*.py")]
    modules = {name.rpartition(".")[2]: name for name in (*here, *chapters.files("cli/[a-z]*.py"))}
    for name, module in sorted(modules.items()):
        command = cast(Command, import_module(module))
        takes_others = getattr(command, "TAKES_OTHERS", False)
        added = subparsers.add_parser(
            name, help=command.ABOUT, description=command.ABOUT, add_help=not takes_others
        )
        added.set_defaults(module=command, parser=added, takes_others=takes_others)
        command.add_options(added)
    return parser
