"""The job of the demo `launchers`, started by Ray Train on workers of this machine.

Ray starts the workers, makes their process group, and calls `train` in each of them, where
`launch.init()` takes that group as it is. Needs `pip install 'course-lib[ray]'`; run it with
`python -m course_lib.chapters.ch15_launchers_and_recovery.demos.launchers.ray_train --ranks 2`.
"""

import signal
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from importlib.util import find_spec
from typing import Any

from course_lib.chapters.ch15_launchers_and_recovery.demos.launchers import job
from course_lib.demos.shared.options import option, parse
from course_lib.demos.shared.result import Result, render


@dataclass(frozen=True)
class Options(job.Options):
    """The options of the job, the number of workers and the time limit."""

    ranks: int = option(2, "workers, one process each", least=1)
    limit_s: float = option(120.0, "seconds after which all of Ray is ended", above=0)


def train(options: dict[str, Any]) -> dict[str, Any]:
    """The training function of each worker; Ray returns rank 0's result."""
    return vars(job.main(job.Options(**options)))


def run(options: Options) -> Result:
    """Start the workers, wait for them, and return the result of rank 0."""
    from ray.train import RunConfig, ScalingConfig
    from ray.train.torch import TorchConfig, TorchTrainer

    arguments = {entry.name: getattr(options, entry.name) for entry in fields(job.Options)}
    with ended_after(options.limit_s), ray_alone(options.ranks) as folder:
        trainer = TorchTrainer(
            train,
            train_loop_config=arguments,
            scaling_config=ScalingConfig(num_workers=options.ranks),
            torch_config=TorchConfig(backend="gloo"),
            run_config=RunConfig(storage_path=folder),
        )
        values = dict(trainer.fit().return_value)
        return Result(*values.pop("said"), **values)


@contextmanager
def ray_alone(ranks: int) -> Iterator[str]:
    """Start a Ray cluster on this machine and yield its folder; the cluster ends with the block.

    It declares a CPU for each worker and one for the trainer, whatever the machine really has: a
    trainer that asks for more than declared would wait forever. It logs to its folder.
    """
    import ray

    # Ray's processes may still write while they end: ignore files that cannot be removed.
    with tempfile.TemporaryDirectory(prefix="course_ray_", ignore_cleanup_errors=True) as folder:
        try:
            ray.init(
                "local",  # never join a running cluster
                num_cpus=ranks + 1,
                include_dashboard=False,
                log_to_driver=False,
                logging_level="ERROR",
                _temp_dir=folder,
            )
            yield folder
        finally:
            ray.shutdown()


@contextmanager
def ended_after(limit_s: float) -> Iterator[None]:
    """Raise TimeoutError in the block after `limit_s`, so that Ray is shut down."""

    timeout = TimeoutError(f"no end within {limit_s:g} s: raise limit_s")
    raised = False

    def too_late(_: int, __: object) -> None:
        nonlocal raised
        raised = True
        raise timeout

    handler = signal.signal(signal.SIGALRM, too_late)
    previous = signal.setitimer(signal.ITIMER_REAL, limit_s)
    try:
        yield
    except Exception:
        if raised:  # Ray may have wrapped the TimeoutError in another exception
            raise timeout from None
        raise
    finally:
        signal.setitimer(signal.ITIMER_REAL, *previous)
        signal.signal(signal.SIGALRM, handler)


if __name__ == "__main__":
    if find_spec("ray") is None:
        sys.exit("Ray is not installed: pip install 'course-lib[ray]'")
    options = parse("ray_train", Options, sys.argv[1:], __doc__)
    print(render(run(options), options.json))
