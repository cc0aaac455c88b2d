"""Programs, one per technique: run from a cell, by `course demo`, or by torchrun.

A demo is a module NAME.py in this folder or in `demos` of a chapter's room, or a folder NAME with a
`program.py`. It has `Options`
(shared.options), `main(options)`, and a result with `report()`; the first line of its docstring is
its line in `course demo --list`.
"""

from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

from course_lib import chapters, launch
from course_lib.arguments import Parser
from course_lib.validation import choice

_FOLDER = Path(__file__).parent


def _summaries() -> dict[str, str]:
    """{demo: first docstring line}, sorted by name, without importing the demos."""
    return {name: _first_line(path) for name, (_, path) in sorted(_MODULES.items())}


def _modules() -> dict[str, tuple[str, Path]]:
    """{demo: (module, path)}, of this folder and of the chapters."""
    here = {f"{__name__}.{path.stem}": path for path in _FOLDER.glob("[a-z]*.py")}
    here |= {
        f"{__name__}.{path.parent.name}.program": path for path in _FOLDER.glob("*/program.py")
    }
    in_rooms = chapters.files("demos/[a-z]*.py") | chapters.files("demos/*/program.py")
    return {
        module.removesuffix(".program").rpartition(".")[2]: (module, path)
        for module, path in (here | in_rooms).items()
    }


def _first_line(path: Path) -> str:
    """The first line of a module's docstring, read without parsing the module."""
    with path.open(encoding="utf-8") as file:
        return file.readline().strip().strip('".')


_MODULES = _modules()
DEMOS = _summaries()


def load(name: str) -> ModuleType:
    """Import demo `name`; ValueError that suggests the nearest name for an unknown one."""
    choice("demo", name, DEMOS)
    return import_module(_MODULES[name][0])


def parse(
    name: str, argv: Sequence[str], launching: Callable[[Parser], object] | None = None
) -> Any:
    """The Options of demo `name` from command-line arguments.

    Raises ValueError for an unknown demo. A bad argument exits with a message and status 2.
    `launching`: see `shared.options.parse`.
    """
    from course_lib.demos.shared import options

    module = load(name)
    return options.parse(name, module.Options, argv, module.__doc__, launching)


def run(
    name: str,
    ranks: int = 2,
    timeout_s: float = 120.0,
    stream: bool = True,
    record: Path | str | None = None,
    **options: Any,
) -> Any:
    """Run demo `name` on `ranks` processes and return rank 0's result.

    `options` are the fields of the demo's Options; `record`: see `launch.run`. Raises ValueError
    for a bad option and launch.RankFailed when a rank fails or the time limit is reached.
    """
    module = load(name)
    settings = module.Options(**options)
    return launch.run(
        module.main, settings, ranks=ranks, timeout_s=timeout_s, stream=stream, record=record
    )[0]
