"""The pipeline schedules there are, what each demands, and how many micro-batches it holds."""

from collections.abc import Sequence

from course_lib.checked import checked
from course_lib.validation import choice, divisible, text, whole

# As many as layers, for which see shape.py; no pipeline is nearly as long as MOST_STAGES.
MOST_CHUNKS = 10_000
MOST_STAGES = 1024
SCHEDULES = ("naive", "gpipe", "1f1b", "interleaved", "zb1p", "dualpipe")


@checked
def check_schedule(
    name: str,
    stages: int,
    micro_batches: int,
    virtual_stages: int = 1,
    *,
    group: int | None = None,
    words: tuple[str, str] = ("stages", "micro_batches"),
) -> None:
    """Raise ValueError unless schedule `name` exists for these sizes.

    "interleaved" sends groups of micro-batches through each of its `virtual_stages` chunks in turn.
    `group`: micro-batches of one group (Megatron-LM's
    microbatch_group_size_per_virtual_pipeline_stage; N in Llama 3, arXiv:2407.21783, section
    3.3.2): all of them, or at least `stages`, as many as must be in the last group, too, since the
    stages would wait for each other. None: `stages`, which then have to divide the micro-batches.
    "dualpipe" feeds half of the micro-batches in from either end. `words`: what the caller calls
    stages and micro-batches.
    """
    whole("words", len(words), 2, 2)
    stages_word, batches_word = words
    text("stages_word", stages_word)
    text("batches_word", batches_word)
    choice("schedule", name, SCHEDULES)
    whole(stages_word, stages)
    whole(batches_word, micro_batches)
    whole("virtual_stages", virtual_stages, most=MOST_CHUNKS)
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
        _even(stages_word, stages)
        _even(batches_word, micro_batches)
        whole(f"{batches_word} of dualpipe", micro_batches, least=2 * stages)


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


def _even(word: str, value: int) -> None:
    if value % 2:
        raise ValueError(
            f"{word} {value} is odd, and dualpipe works from both ends: take {value + 1}"
        )


@checked
def chunks_in_flight(
    name: str,
    stages: int,
    micro_batches: int,
    virtual_stages: int = 1,
    *,
    stage: int = 0,
    group: int | None = None,
    layers: Sequence[int] | None = None,
) -> dict[int, int]:
    """Micro-batches whose activations `stage` holds at its peak, for each of its chunks.

    With p stages and m micro-batches. naive: 1; gpipe: m; 1f1b: min(m, p - stage); zb1p: min(m, p),
    since the weights' part of backward waits; dualpipe: 1f1b in both directions, p + 1 in all;
    interleaved: 2(p - stage - 1) + (v - 1)N + 1 passes of chunks, v = virtual_stages, N = `group`,
    p unless it is given. These many are held again and again, shared among the chunks in changing
    ways: before the first backward pass, or with `layers`, how many each chunk of the stage has,
    when they have most layers.
    Sources: Narayanan et al. 2021, arXiv:2104.04473, section 2.2; Korthikanti et al. 2022,
    arXiv:2205.05198, section 4.2.3; Qi et al. 2023, arXiv:2401.10241 (ZB-H1);
    DeepSeek-V3, arXiv:2412.19437, table 2.
    """
    check_schedule(name, stages, micro_batches, virtual_stages, group=group)
    whole("stage", stage, least=0, most=stages - 1)
    if layers is not None:
        _check_layers(layers, 2 if name == "dualpipe" else virtual_stages)
    if name == "interleaved" and virtual_stages > 1:
        warm_up = 2 * (stages - stage - 1) + (virtual_stages - 1) * (group or stages)
        passes = min(micro_batches * virtual_stages, warm_up + 1)
        weights = [1] * virtual_stages if layers is None else layers
        counts = _heaviest(passes, micro_batches, group or stages, weights)
        return {stage + turn * stages: count for turn, count in enumerate(counts)}
    if name == "dualpipe":  # micro_batches / 2 is at least p
        return {chunk: stages - chunk for chunk in (stage, stages - 1 - stage)}
    held = {"naive": 1, "gpipe": micro_batches, "zb1p": stages}.get(name, stages - stage)
    return {stage: min(micro_batches, held)}


def _check_layers(layers: Sequence[int], chunks: int) -> None:
    whole("len(layers)", len(layers), chunks, chunks)
    for chunk, count in enumerate(layers):
        whole(f"layers[{chunk}]", count, least=0)


def _heaviest(passes: int, micro_batches: int, group: int, layers: Sequence[int]) -> list[int]:
    """How `passes` forward passes in flight lie on the chunks when they have most layers.

    First a group has gone to each chunk in turn, then the next group. From then on every forward
    pass follows a backward pass, whose groups go through the chunks the other way round.
    """
    enough = (passes // (group * len(layers)) + 3) * group  # then it goes on like this
    steps = min(micro_batches, enough)
    groups = [min(group, steps - i) for i in range(0, steps, group)]
    turns = [(chunk, size) for size in groups for chunk in range(len(layers))]
    back = [(len(layers) - 1 - chunk, size) for chunk, size in turns]
    held, ahead = [0] * len(layers), 0
    while passes:
        chunk, size = turns[ahead]
        step = min(size, passes)
        held[chunk] += step
        passes -= step
        turns[ahead] = chunk, size - step
        ahead += step == size
    if len(set(layers)) == 1:
        return held
    heaviest, more, most, behind = list(held), 0, 0, 0
    while ahead < len(turns):
        (there, left), (here, due) = turns[ahead], back[behind]
        step = min(left, due)
        held[there] += step
        held[here] -= step
        more += step * (layers[there] - layers[here])
        if more > most:
            heaviest, most = list(held), more
        turns[ahead], back[behind] = (there, left - step), (here, due - step)
        ahead, behind = ahead + (step == left), behind + (step == due)
    return heaviest
