"""The files of a plan: one job in, the settings of the engine that runs it out.

A target is a module of this room with `files(job, model, constants)`: the files' texts by name. An
engine has a NAME as well, and `reasons(job)`: sentences on what it cannot do → whether the job asks
for that. What a user must give before the first run, and what the files leave open, is in the
comment at the head. Nothing here imports an engine.
"""

from collections.abc import Iterable, Mapping
from importlib import import_module
from pathlib import Path

from course_lib.emitting.head import words
from course_lib.theory.inputs.job import Job
from course_lib.theory.inputs.models import Constants, of_shape
from course_lib.validation import choice

ENGINES = ("torchtitan", "megatron", "deepspeed", "accelerate")
TARGETS = ("slurm", "trainjob", *ENGINES)


def files(target: str, job: Job, model: str, constants: Constants | None = None) -> dict[str, str]:
    """The files for one target by name; `model` is what the job's shape is called.

    `constants`: what it computes beyond its sizes; None: as the preset with these sizes.

    Raises ValueError for an unknown target, for a layout that leaves GPUs of the cluster idle, and
    for one that the engine cannot run.
    """
    choice("emit", target, TARGETS)
    job.layout.check_world(job.cluster.world)
    module = import_module(f"{__name__}.{target}")
    if target in ENGINES:
        common = {
            "it does not gather as YaFSDP does": job.recipe.gathering == "yafsdp",
            "it exchanges gradients once or every time": job.layout.reduces == "group",
        }
        for reason, holds in {**module.reasons(job), **common}.items():
            if holds:
                raise ValueError(
                    f"{module.NAME} cannot run {words(job.layout)}: {reason}; take another layout "
                    "or engine"
                )
    known = of_shape(job.shape) if constants is None else constants
    made: dict[str, str] = module.files(job, model, known)
    return made


def first_possible(target: str, jobs: Iterable[Job]) -> int | None:
    """The number, from 1, of the first job that the target can run; None if it can run none."""
    for number, job in enumerate(jobs, start=1):
        try:
            files(target, job, "")
        except ValueError:
            continue
        return number
    return None


def write(texts: Mapping[str, str], folder: Path) -> list[Path]:
    """The paths of the files in the folder, which are new or hold these texts already.

    Raises ValueError, before anything is written, where a file with another text is there, and for
    a folder that cannot be written.
    """
    paths = {folder / name: text for name, text in texts.items()}
    try:
        for path, text in paths.items():
            if path.exists() and path.read_bytes() != text.encode():
                raise ValueError(
                    f"{path} is there already, with another text: move it away, or name another "
                    "folder"
                )
        folder.mkdir(parents=True, exist_ok=True)
        for path, text in paths.items():
            path.write_bytes(text.encode())
    except OSError as error:
        raise ValueError(
            f"{folder} cannot be written ({error.strerror}): name a folder of yours"
        ) from error
    return list(paths)
