"""The pipeline schedules there are, what each demands, and how many micro-batches it holds."""

from collections.abc import Iterator
from functools import partial
from typing import Annotated

from course_lib.checked import Count, Text, check_public
from course_lib.validation import choice, divisible, whole

# As many as layers, for which see shape.py; no pipeline is nearly as long as MOST_STAGES.
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
    """Raise ValueError unless schedule `name` exists for these sizes.

    "interleaved" sends groups of micro-batches through each of its `virtual_stages` chunks in turn.
    `group`: micro-batches of one group (Megatron-LM's
    microbatch_group_size_per_virtual_pipeline_stage; N in Llama 3, arXiv:2407.21783, section
    3.3.2): all of them, or at least `stages`, as many as must be in the last group, too, since the
    stages would wait for each other. None: `stages`, which then have to divide the micro-batches.
    "dualpipe" feeds half of the micro-batches in from either end; "zbv" has two chunks on each
    stage and at least as many micro-batches as fill it, 2 stages - 1. `words`: what the caller
    calls stages and micro-batches.
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
    """The pieces of the model that one stage holds: stage, stage + stages, …

    Two mirrored ones in "dualpipe", of as many as stages, and in "zbv", of twice as many. Sources:
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
    """Megatron-LM's rule, and Llama 3's exception: fewer micro-batches than stages in one group."""
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
    """When `stage` may hold most: before a backward pass, at every moment that no other exceeds.

    Each is (changes, place): how many more micro-batches are held of which chunk of the stage than
    at the moment before, and the chunk that works backward next; both count its chunks from 0.

    With p stages and m micro-batches. naive: 1; gpipe: m; 1f1b: min(m, p - stage); zb1p: min(m, p),
    since the weights' part of backward waits; zbv: 2p passes of chunks, 2p - stage - 1 of the first
    and stage + 1 of the second before that one's backward pass, and one more and one less before
    the first one's; dualpipe: 1f1b in both directions, p + 1, before either's backward pass;
    interleaved: 2(p - stage - 1) + (v - 1)N + 1 passes of chunks, v = virtual_stages, N = `group`,
    p unless it is given. These many are held again and again, shared among the chunks in changing
    ways. Sources: Narayanan et al. 2021, arXiv:2104.04473, section 2.2; Korthikanti et al. 2022,
    arXiv:2205.05198, section 4.2.3; Qi et al. 2023, arXiv:2401.10241 (ZB-H1; ZB-V in section 6);
    DeepSeek-V3, arXiv:2412.19437, table 2.
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
    """Interleaved: `passes` forward passes, then a backward and a forward pass in turn.

    Groups go through the chunks, backward the other way round; between two turns of either the
    change from pass to pass is the same, so its first and its last moment are enough.
    """
    enough = (passes // (group * v) + 2) * group  # then all moments were there
    m = min(m, enough + m % group)
    sizes = [min(group, m - done) for done in range(0, m, group)]
    there = [[place, size] for size in sizes for place in range(v)][::-1]
    back = [[v - 1 - place, size] for place, size in there]
    held = dict.fromkeys(range(v), 0)
    while there and passes:
        step = min(passes, there[-1][1])
        held[there[-1][0]] += step
        passes -= step
        _take(there, step)
    changes = list(held.items())
    while back:
        of, step = back[-1]
        turn = [(of, -1)]
        if there:
            to, left = there[-1]
            step, turn = min(step, left), [*turn, (to, 1)]
            _take(there, step)
        yield changes, of
        if step > 1:
            yield [(place, count * (step - 1)) for place, count in turn], of
        changes = turn
        _take(back, step)


def _take(turns: list[list[int]], step: int) -> None:
    """`step` passes off the turn that is next, the last of the list."""
    turns[-1][1] -= step
    if not turns[-1][1]:
        turns.pop()


check_public(globals())
