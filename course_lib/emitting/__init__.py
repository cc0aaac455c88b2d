"""Export a plan: configuration files for the engine or scheduler that runs a job.

A target is a module of this package with `files(job, model, constants)` -> {file name: text}. An
engine also has a NAME, and `reasons(job)` -> {limitation: whether the job violates it}. The comment
at the head of each file says what a user must fill in, and what the file leaves open. Nothing here
imports an engine.
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
    """{file name: text} for one target; `model` is the name of the job's shape.

    `constants`: model constants beyond its sizes; None: those of the preset with these sizes.

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
    """The 1-based index of the first job that the target can run; None if there is none."""
    for number, job in enumerate(jobs, start=1):
        try:
            files(target, job, "")
        except ValueError:
            continue
        return number
    return None


def write(texts: Mapping[str, str], folder: Path) -> list[Path]:
    """Write the files into the folder, unless they exist with the same text; returns paths.

    Raises ValueError, before writing anything, if a file exists with a different text, and for an
    unwritable folder.
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
