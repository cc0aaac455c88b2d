"""The stepper of chapter 11: a pipeline, moment by moment, and what each stage holds."""

from course_lib import figures
from course_lib.figures.paper.text import counted
from course_lib.panels.controls import choice, whole
from course_lib.panels.panel import View
from course_lib.panels.pipeline_panel import SCHEDULE_NAMES
from course_lib.panels.stepper import Stepper, Story
from course_lib.theory.pipelines.moments import AtStage, Moment, pipeline_moments
from course_lib.theory.pipelines.simulation import timeline
from course_lib.theory.pipelines.timeline import Timeline

_CHUNKS = 2  # of the interleaved schedule
_WAITS = "waits"
_DOES = {
    "F": "forward",
    "B": "backward",
    "I": "input's gradient",
    "W": "weights' gradient",
}


def schedule(name: str = "1f1b", stages: int = 4, micro_batches: int = 8) -> Stepper:
    """Every moment of a schedule at which a pass starts or ends; a backward takes two forwards.

    Raises ValueError for starting values outside the controls or a schedule that they do not fit.
    """
    controls = {
        "name": choice("schedule", name, SCHEDULE_NAMES),
        "stages": whole("stages", stages, 2, 6),
        "micro_batches": whole("micro-batches", micro_batches, 1, 12),
    }
    return Stepper(controls, _story)


def _story(name: str, stages: int, micro_batches: int) -> Story:
    line = timeline(name, stages, micro_batches, _CHUNKS if name == "interleaved" else 1)
    moments = pipeline_moments(line)
    return Story(len(moments), lambda step: _view(line, moments, step))


def _view(line: Timeline, moments: tuple[Moment, ...], step: int) -> View:
    moment = moments[step]
    idle = [
        stage for stage in moment.stages if stage.running is None and moment.time < line.makespan
    ]
    rows = (
        ("held now", _each([len(at.held) / _share(line) for at in moment.stages])),
        ("most so far", _each([at.most for at in moment.stages])),
        ("waiting now", f"{len(idle)} of {counted(line.stages, 'stage')}"),
    )
    return View(
        (line.schedule.name, moment),
        rows,
        lambda: figures.pipeline_step(line, moments, step),
        _caption(line, moment),
    )


def _share(line: Timeline) -> int:
    """Chunks that make a whole micro-batch."""
    return line.schedule.visits


def _each(counts: list[float]) -> str:
    return f"{', '.join(f'{count:g}' for count in counts)} micro-batches, from stage 0 on"


def _caption(line: Timeline, moment: Moment) -> str:
    """What starts, and what has just been freed."""
    time = f"After {moment.time:.4g} of {line.makespan:.4g} units"
    if moment.time == line.makespan:
        return f"{time}: the last backward pass is over, and nothing is held any more."
    doing: dict[str, list[str]] = {}
    for stage, at in enumerate(moment.stages):
        doing.setdefault(_does(at), []).append(str(stage))
    idle = doing.pop(_WAITS, [])
    words = [f"{what} on {_stages(stages)}" for what, stages in doing.items()]
    if idle:
        words.append(f"{_stages(idle)} wait{'s' * (len(idle) == 1)}")
    return f"{time}: {'; '.join(words)}."


def _stages(stages: list[str]) -> str:
    return f"stage{'s' * (len(stages) > 1)} {', '.join(stages)}"


def _does(at: AtStage) -> str:
    if at.running is None:
        return _WAITS
    if at.running.backward:
        return "forward and backward together"
    return _DOES[at.running.kind]
