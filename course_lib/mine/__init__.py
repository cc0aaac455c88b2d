"""The learner's library: `mine.ring_all_gather` is the learner's if built, else the course's.

A build that passes its check is saved as a plain Python file in the folder `mine/`. Later chapters
run on these files.
"""

import importlib.util
import os
import re
import sys
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

from course_lib import home
from course_lib.mine.cells import lines_of, sources_with_used, taken_from_the_course, text_of
from course_lib.problem import Problem


@dataclass(frozen=True)
class Part:
    """One build: `names` are saved in `mine/<file>.py`; the course's versions are in module `home`.

    `given` are names that the learner may import from that module and does not write.
    """

    file: str
    build: str  # the exercise's id
    home: str
    names: tuple[str, ...]
    given: tuple[str, ...] = ()


def _part(file: str, build: str, home: str, names: str, given: str = "") -> Part:
    return Part(file, build, f"course_lib.{home}", tuple(names.split()), tuple(given.split()))


PARTS = (
    _part(
        "accumulation",
        "2.10",
        "scratch.accumulation",
        "accumulate accumulate_ddp",
        given="loss_sum count_tokens",
    ),
    _part("master_adamw", "3.11", "scratch.precision", "adamw_update MasterAdamW"),
    _part(
        "eight_bit",
        "3.12",
        "scratch.precision",
        "quantise dequantise AdamW8bit",
        given="dynamic_levels adamw_update",
    ),
    _part("checkpointing", "4.6", "scratch.checkpointing", "Checkpoint"),
    _part(
        "ring", "6.11", "scratch.collectives", "ring_reduce_scatter ring_all_gather", given="Peers"
    ),
    _part("tree", "6.12", "scratch.collectives", "tree_all_reduce", given="Peers"),
    _part("ddp", "7.10", "scratch.ddp", "Bucket DDP", given="after_backward fill"),
    _part(
        "zero",
        "8.11",
        "scratch.zero",
        "Unit Zero clip",
        given="OptimizerPlace flatten units_of views",
    ),
    _part("fsdp", "9.11", "scratch.fsdp", "FSDPUnit FSDP", given="Gather Hooked remove"),
    _part("tensor", "10.11", "scratch.tensor", "Copy Sum ColumnParallelLinear RowParallelLinear"),
    _part("sequence", "10.12", "scratch.tensor", "Gather SumScatter"),
    _part(
        "vocabulary",
        "10.13",
        "scratch.tensor",
        "vocab_parallel_cross_entropy",
        given="TensorParallel",
    ),
    _part("pipeline", "11.11", "scratch.pipeline", "Pipeline"),
    _part("experts", "12.10", "scratch.experts", "AllToAll Dispatcher", given="by_expert"),
    _part(
        "ring_attention",
        "12.11",
        "scratch.context",
        "block_forward merge ring_forward",
        given="Passing SequenceRing",
    ),
    _part("mesh", "13.12", "scratch.three_d", "Mesh", given="Coordinates own_group"),
    _part(
        "server",
        "14.10",
        "scratch.parameter_server",
        "RemoteTable ParameterServer",
        given="Messages",
    ),
    _part(
        "launcher",
        "15.10",
        "scratch.launcher",
        "rank_environment launch_ranks end_ranks setup cleanup",
        given="free_port",
    ),
    _part(
        "reshard",
        "15.11",
        "scratch.recovery",
        "write_whole save_shard load_shard",
        given="columns remove_old complete CheckpointError read_manifest read_shard",
    ),
    _part("ibstat", "16.12", "clinic.ports", "ibstat", given="Port"),
    _part(
        "divergence",
        "16.13",
        "chapters.ch16_cluster_clinic.diagnosing.divergence",
        "first_divergence",
    ),
    _part(
        "shared_rate",
        "17.11",
        "chapters.ch17_capstone.streams",
        "rates shared_timeline",
        given="Task Span SharedTimeline",
    ),
    _part("claims", "17.12", "chapters.ch17_capstone.claimed", "audit_run", given="JudgedRun Run"),
)
BY_FILE = {part.file: part for part in PARTS}
BY_NAME = {name: part for part in PARTS for name in part.names}


def folder() -> Path:
    """`mine/` in the learner's folder, or in the clone that this library runs from; else at home.

    Also in `home()` if the variable COURSE_HOME is set, as for a class or a test.
    """
    here = None if os.environ.get("COURSE_HOME") else home.folder() or home.clone()
    return (here or home.home()) / "mine"


def file_of(part: Part) -> Path:
    """The path of a part's file, whether or not it exists."""
    return folder() / f"{part.file}.py"


def is_mine(name: str) -> bool:
    """Whether the learner has built the part with this function or class."""
    return file_of(BY_NAME[name]).is_file()


def get(name: str, parts: str = "mine") -> Any:
    """The learner's function or class, or the course's if it is not built yet.

    With `parts="course"` it is always the course's. Raises Problem if the learner's file cannot be
    loaded or does not have the name.
    """
    part = BY_NAME[name]
    if parts == "mine" and is_mine(name):
        path = file_of(part)
        module = _loaded(path, path.stat().st_mtime_ns)
        if not hasattr(module, name):
            raise Problem(f"{path} has no {name}: run the check of {part.build} again")
        return getattr(module, name)
    return getattr(import_module(part.home), name)


def lines(part: Part, parts: str = "mine") -> int | None:
    """Lines of code of a part, without blank lines, comments and docstrings; None if not built.

    With `parts="course"`, of the course's version with everything it uses from the same module.
    Raises Problem if the learner's file is not valid Python.
    """
    if parts == "mine":
        path = file_of(part)
        return _lines_of_file(path) if path.is_file() else None
    return sum(lines_of(text) for each in own_names(part).values() for text in each.values())


def own_names(part: Part) -> dict[str, dict[str, str]]:
    """{module: {name: source}} of the course's version of a part, including what it uses there.

    The names that the exercise gives are left out.
    """
    names: dict[str, list[str]] = {}
    for name in part.names:
        names.setdefault(get(name, "course").__module__, []).append(name)
    return {
        home: sources_with_used(import_module(home), own, part.given) for home, own in names.items()
    }


def _lines_of_file(path: Path) -> int:
    try:
        return lines_of(path.read_text(encoding="utf-8"))
    except SyntaxError as error:
        raise Problem(
            f"{path}, line {error.lineno}, is no Python ({error.msg}): mend it, or rename it and "
            "the course's own part is taken"
        ) from error


def keep(file: str, answers: Sequence[Any]) -> Path | None:
    """Save the cells that define the answers as `mine/<file>.py`; return its path.

    Returns None if they are not defined in cells but imported from a module. An existing file with
    other content is renamed first, to `<file>_before_1.py` and so on.
    """
    part = BY_FILE[file]
    text = text_of(answers)
    if not text:
        return None
    path = file_of(part)
    path.parent.mkdir(parents=True, exist_ok=True)
    whole = f'"""{", ".join(part.names)}: built in exercise {part.build}."""\n\n{text}'
    if path.exists() and path.read_text(encoding="utf-8") != whole:
        os.replace(path, free_name(path))
    path.write_text(whole, encoding="utf-8")
    return path


def free_name(path: Path) -> Path:
    """The first unused backup name of a file: `ring_before_1.py` for `ring.py`, and so on."""
    number = 1
    while (aside := path.with_name(f"{path.stem}_before_{number}{path.suffix}")).exists():
        number += 1
    return aside


def borrowed(part: Part) -> list[str]:
    """Names of the course's version of a part that the learner's file imports, sorted; [] if none.

    Raises Problem if the file is not valid Python.
    """
    path = file_of(part)
    if not path.is_file():
        return []
    _lines_of_file(path)
    own = {name for names in own_names(part).values() for name in names}
    return sorted(taken_from_the_course(path.read_text(encoding="utf-8"), own))


def places(text: str) -> list[str]:
    """The innermost line of `mine/` in a traceback, or in that of each rank, as text."""
    lines = []
    for stack in re.split(r"^rank \d+ was here:\n", text, flags=re.M):
        frames = re.findall(r'^  File "(.+)", line (\d+), in .*\n(?:    (.*))?', stack, re.M)
        own = [frame for frame in frames if Path(frame[0]).parent == folder()]
        if own:
            file, line, code = own[-1]
            lines.append(f"{file}, line {line}" + (f", `{code.strip()}`" if code else ""))
    return list(dict.fromkeys(lines))


@cache
def _loaded(path: Path, _changed_ns: int) -> ModuleType:
    """Load the module in the file; cached until the file's modification time changes."""
    import cloudpickle

    spec = importlib.util.spec_from_file_location(f"mine_{path.stem}", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up here
    cloudpickle.register_pickle_by_value(module)  # other processes cannot import it by name
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        lines = traceback.extract_tb(error.__traceback__)
        line = next((f", line {x.lineno}" for x in reversed(lines) if x.filename == str(path)), "")
        raise Problem(
            f"{path}{line} cannot be loaded ({type(error).__name__}: {error}): mend it, or rename "
            "it and the course's own part is taken"
        ) from error
    return module


def __getattr__(name: str) -> Any:
    if name in BY_NAME:
        return get(name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *BY_NAME])
