"""What makes a demo a program: its options as arguments, its result as text or JSON."""

import argparse
from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import Any, NoReturn, TypeVar

from course_lib import launch
from course_lib.arguments import Parser
from course_lib.demos.shared.options import DemoOptions
from course_lib.demos.shared.result import render

Options = TypeVar("Options", bound=DemoOptions)


class _Formatter(argparse.ArgumentDefaultsHelpFormatter):
    """Shows the default of every option that has one."""

    def _get_help_string(self, action: argparse.Action) -> str | None:
        return action.help if action.default is None else super()._get_help_string(action)


def parse(
    demo: str,
    options: type[Options],
    argv: Sequence[str],
    about: str | None,
    launching: Callable[[Parser], object] | None = None,
) -> Options:
    """Build `options` from `argv`: the field `micro_batch: int` becomes `--micro-batch N`.

    A bool becomes a pair such as `--shuffle` and `--no-shuffle`. A bad value ends the program with
    a sentence and exit code 2. `launching` adds the launcher's options, which have been read
    already: they stand in the help only.
    """
    parser = Parser(
        prog=f"course demo {demo}",
        description=about,
        formatter_class=_Formatter,
    )
    if launching:
        launching(parser)
    for entry in fields(options):
        kind: dict[str, Any] = {"type": type(entry.default)}
        if isinstance(entry.default, bool):
            kind = {"action": argparse.BooleanOptionalAction}
        name = f"--{entry.name.replace('_', '-')}"
        parser.add_argument(name, default=entry.default, help=entry.metadata["help"], **kind)
    given, others = parser.parse_known_args(argv)
    if others:
        parser.refuse(others)
    try:
        return options(**{entry.name: getattr(given, entry.name) for entry in fields(options)})
    except ValueError as problem:
        parser.exit(2, f"{parser.prog}: {problem}\n")


def run_as_program(main: Callable[[Options], Any], options: Options) -> NoReturn:
    """Run `main(options)` on this rank, alone or under torchrun; rank 0 prints the result."""

    def main_and_print(options: Options) -> None:
        result = main(options)
        if launch.init().rank == 0:
            print(render(result, options.json), flush=True)

    launch.program(main_and_print, options)
