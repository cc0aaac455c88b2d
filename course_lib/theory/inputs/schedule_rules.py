"""Pipeline schedules: their constraints, their chunks, and the micro-batches that they hold."""

from collections.abc import Iterator
from functools import partial
from typing import Annotated

from course_lib.checked import Count, Text, check_public
from course_lib.validation import choice, divisible, whole

# MOST_CHUNKS equals MOST_LAYERS in shape.py; no real pipeline comes near MOST_STAGES.
MOST_CHUNKS = 10_000
MOST_STAGES = 1024
SCHEDULES = ("naive", "gpipe", "1f1b", "interleaved", "zb1p", "zbv", "dualpipe")


def check_schedule(
    name: str,
    stages: int,
    micro_batches: int,
    virtual_stages: Annotated[int, partial(whole, most=MOST_CHUNKS)] = 1,
    *,
    group: int | None = None,
    words: tuple[Text, ...] = ("stages", "micro_batches"),
) -> None:
    """Raise ValueError unless schedule `name` is defined for these sizes.

    "interleaved" sends groups of micro-batches through each of its `virtual_stages` chunks in turn.
    `group`: micro-batches of one group (Megatron-LM's
    microbatch_group_size_per_virtual_pipeline_stage; N in Llama 3, arXiv:2407.21783, section
    3.3.2): all of them, or at least `stages`, and the last group must be that large as well, or the
    stages would deadlock. None: `stages`, which then must divide the micro-batches.
    "dualpipe" feeds half of the micro-batches in from either end; "zbv" has two chunks per stage
    and needs at least 2 stages - 1 micro-batches to fill the pipeline. `words`: the caller's names
    for stages and micro-batches, used in error messages.
    """
    whole("words", len(words), 2, 2)
    stages_word, batches_word = words
    choice("schedule", name, SCHEDULES)
    whole(stages_word, stages)
    whole(batches_word, micro_batches)
    if group is not None:
        _check_group(name, stages, micro_batches, group)
    if name == "interleaved" and group is None:
        divisible(batches_word, micro_batches, stages_word, stages)
    elif name != "interleaved" and virtual_stages != 1:
        raise ValueError(
            f"virtual_stages {virtual_stages} has no meaning for schedule {name!r}: "
            "take schedule 'interleaved' or virtual_stages 1"
        )
    if name == "dualpipe":
        for word, value in ((stages_word, stages), (batches_word, micro_batches)):
            if value % 2:
                raise ValueError(
                    f"{word} {value} is odd, and dualpipe works from both ends: take {value + 1}"
                )
        whole(f"{batches_word} of dualpipe", micro_batches, least=2 * stages)
    if name == "zbv":
        whole(f"{batches_word} of zbv", micro_batches, least=2 * stages - 1)


def stage_chunks(
    name: Annotated[str, SCHEDULES],
    stages: Count,
    stage: int,
    virtual_stages: Annotated[int, partial(whole, most=MOST_CHUNKS)] = 1,
) -> tuple[int, ...]:
    """Indices of the chunks of the model that one stage holds: stage, stage + stages, …

    In "dualpipe" and "zbv" two mirrored ones, of `stages` and 2 · `stages` chunks. Sources:
    Narayanan et al. 2021, arXiv:2104.04473, section 2.2 (interleaved); DeepSeek-V3,
    arXiv:2412.19437, section 3.2.1 (DualPipe holds two copies of the parameters); Qi et al. 2023,
    arXiv:2401.10241, section 6.
    """
    whole("stage", stage, least=0, most=stages - 1)
    chunks = stages * (2 if name == "zbv" else virtual_stages)
    if name in ("dualpipe", "zbv"):
        return stage, chunks - 1 - stage
    return tuple(range(stage, chunks, stages))


def _check_group(name: str, stages: int, micro_batches: int, group: int) -> None:
    """Check Megatron-LM's rule and Llama 3's exception of one group smaller than the stages."""
    whole("group", group, most=micro_batches)
    if name != "interleaved":
        raise ValueError(
            f"group {group} has no meaning for schedule {name!r}: "
            "take schedule 'interleaved' or leave group out"
        )
    last = micro_batches % group or group
    if group < micro_batches and min(group, last) < stages:
        raise ValueError(
            f"group {group} cuts {micro_batches} micro-batches into groups of which the last has "
            f"{last}, and {stages} stages would wait for each other: make every group at least "
            f"{stages}, or take one of all {micro_batches}"
        )


Moments = Iterator[tuple[list[tuple[int, int]], int]]


def full_moments(
    name: str,
    stages: int,
    micro_batches: int,
    virtual_stages: int = 1,
    *,
    stage: int = 0,
    group: int | None = None,
) -> Moments:
    """Candidate memory peaks of `stage`: moments before a backward pass that no other exceeds.

    Each is (changes, chunk). `changes` lists (chunk, count): by how many the micro-batches held of
    a chunk have changed since the previous moment. `chunk` runs its backward pass next. Both number
    the stage's own chunks from 0.

    With p stages and m micro-batches a stage holds: naive: 1; gpipe: m; 1f1b: min(m, p - stage);
    zb1p: min(m, p), since weight gradients are delayed; zbv: 2p chunk passes, 2p - stage - 1 of the
    first chunk and stage + 1 of the second before a backward pass of the second, one more and one
    less before one of the first; dualpipe: 1f1b in both directions, p + 1, before a backward pass
    of either; interleaved: 2(p - stage - 1) + (v - 1)N + 1 chunk passes, v = virtual_stages, N =
    `group`, by default p, reached repeatedly with changing splits among the chunks. Sources:
    Narayanan et al. 2021, arXiv:2104.04473, section 2.2; Korthikanti et al. 2022, arXiv:2205.05198,
    section 4.2.3; Qi et al. 2023, arXiv:2401.10241 (ZB-H1; ZB-V in section 6); DeepSeek-V3,
    arXiv:2412.19437, table 2.
    """
    check_schedule(name, stages, micro_batches, virtual_stages, group=group)
    whole("stage", stage, least=0, most=stages - 1)
    if name == "interleaved" and virtual_stages > 1:
        warm_up = 2 * (stages - stage - 1) + (virtual_stages - 1) * (group or stages)
        return _in_turns(micro_batches, virtual_stages, group or stages, warm_up + 1)
    if name == "zbv":
        down = 2 * stages - stage - 1
        more = int(micro_batches > down)
        return iter([([(0, down), (1, stage + 1)], 1), ([(0, more), (1, -1)], 0)])
    if name == "dualpipe":  # micro_batches / 2 is at least p
        return iter([([(0, stages - stage), (1, stage + 1)], 0), ([], 1)])
    held = {"naive": 1, "gpipe": micro_batches, "zb1p": stages}.get(name, stages - stage)
    return iter([([(0, min(micro_batches, held))], 0)])


def _in_turns(m: int, v: int, group: int, passes: int) -> Moments:
    """Moments of an interleaved schedule: `passes` forward passes, then 1B1F in alternation.

    Groups visit the chunks in order, and in reverse order backward. Until either moves on to its
    next chunk each pass changes the counts alike, so the first and last moments are enough.
    """
    enough = (passes // (group * v) + 2) * group  # more micro-batches add no new moments
    m = min(m, enough + m % group)
    sizes = [min(group, m - done) for done in range(0, m, group)]
    forward = [[chunk, size] for size in sizes for chunk in range(v)][::-1]
    backward = [[v - 1 - chunk, size] for chunk, size in forward]
    held = dict.fromkeys(range(v), 0)
    while forward and passes:
        step = min(passes, forward[-1][1])
        held[forward[-1][0]] += step
        passes -= step
        _take(forward, step)
    changes = list(held.items())
    while backward:
        chunk, step = backward[-1]
        turn = [(chunk, -1)]
        if forward:
            filled, left = forward[-1]
            step, turn = min(step, left), [*turn, (filled, 1)]
            _take(forward, step)
        yield changes, chunk
        if step > 1:
            yield [(each, count * (step - 1)) for each, count in turn], chunk
        changes = turn
        _take(backward, step)


def _take(turns: list[list[int]], step: int) -> None:
    """Remove `step` passes from the next turn, which is the last entry of the list."""
    turns[-1][1] -= step
    if not turns[-1][1]:
        turns.pop()


check_public(globals())
