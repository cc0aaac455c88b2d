"""The pipeline schedules there are, what each demands, and how many micro-batches it holds."""

from collections.abc import Sequence

from course_lib.checked import checked
from course_lib.validation import choice, divisible, text, whole

# As many as layers, for which see shape.py; no pipeline is nearly as long as MOST_STAGES.
MOST_CHUNKS = 10_000
MOST_STAGES = 1024
SCHEDULES = ("naive", "gpipe", "1f1b", "interleaved", "zb1p", "zbv", "dualpipe")


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
    "dualpipe" feeds half of the micro-batches in from either end; "zbv" has two chunks on each
    stage and at least as many micro-batches as fill it, 2 stages - 1. `words`: what the caller
    calls stages and micro-batches.
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
    if name == "zbv":
        whole(f"{batches_word} of zbv", micro_batches, least=2 * stages - 1)


@checked
def chunks_on_a_stage(name: str, virtual_stages: int = 1) -> int:
    """Into how many pieces of the model each stage's part is cut: 2 in "zbv".

    Otherwise `virtual_stages`; both chunks of a stage of "dualpipe" are whole parts.
    """
    choice("schedule", name, SCHEDULES)
    whole("virtual_stages", virtual_stages, most=MOST_CHUNKS)
    return 2 if name == "zbv" else virtual_stages


@checked
def stage_of_chunk(name: str, stages: int, chunk: int) -> int:
    """The stage on which piece `chunk` of the model lies: chunk % stages, in "zbv" down and up.

    "dualpipe" has every piece on two stages, of which this is the one of the first direction.
    """
    choice("schedule", name, SCHEDULES)
    whole("stages", stages)
    whole("chunk", chunk, least=0)
    turn, place = divmod(chunk, stages)
    return stages - 1 - place if name == "zbv" and turn else place


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
    since the weights' part of backward waits; zbv: 2p passes of chunks, 2p - stage - 1 of the first
    and stage + 1 of the second or one more and one less; dualpipe: 1f1b in both directions, p + 1;
    interleaved: 2(p - stage - 1) + (v - 1)N + 1 passes of chunks, v = virtual_stages, N = `group`,
    p unless it is given. These many are held again and again, shared among the chunks in changing
    ways: before the first backward pass, or with `layers`, how many each chunk of the stage has,
    when they have most layers.
    Sources: Narayanan et al. 2021, arXiv:2104.04473, section 2.2; Korthikanti et al. 2022,
    arXiv:2205.05198, section 4.2.3; Qi et al. 2023, arXiv:2401.10241 (ZB-H1; ZB-V in section 6);
    DeepSeek-V3, arXiv:2412.19437, table 2.
    """
    check_schedule(name, stages, micro_batches, virtual_stages, group=group)
    whole("stage", stage, least=0, most=stages - 1)
    if layers is not None:
        chunks = 2 if name == "dualpipe" else chunks_on_a_stage(name, virtual_stages)
        whole("len(layers)", len(layers), chunks, chunks)
        whole("sum(layers)", sum(layers), least=0)
    if name == "interleaved" and virtual_stages > 1:
        warm_up = 2 * (stages - stage - 1) + (virtual_stages - 1) * (group or stages)
        passes = min(micro_batches * virtual_stages, warm_up + 1)
        counts = _dealt_out(passes, micro_batches, virtual_stages, group or stages)
        if layers is not None:
            counts = _heaviest(counts, micro_batches, group or stages, layers)
        return {stage + turn * stages: count for turn, count in enumerate(counts)}
    if name == "zbv":
        most = (
            (2 * stages - stage - 1, stage + 1),
            (min(micro_batches, 2 * stages - stage), stage),
        )
        first, second = max(most, key=lambda held: _layers_held(held, layers or (1, 1)))
        return {stage: first, 2 * stages - 1 - stage: second}
    if name == "dualpipe":  # micro_batches / 2 is at least p
        return {chunk: stages - chunk for chunk in (stage, stages - 1 - stage)}
    held = {"naive": 1, "gpipe": micro_batches, "zb1p": stages}.get(name, stages - stage)
    return {stage: min(micro_batches, held)}


def _layers_held(held: Sequence[int], layers: Sequence[int]) -> int:
    return sum(count * each for count, each in zip(held, layers, strict=True))


def _dealt_out(passes: int, m: int, v: int, group: int) -> list[int]:
    """The first `passes` forward passes by chunk: a group to each in turn, then the next group."""
    rounds, rest = divmod(passes, group * v)
    size = min(group, m - rounds * group)  # of the group that is under way
    return [rounds * group + min(size, max(0, rest - turn * size)) for turn in range(v)]


def _heaviest(held: list[int], m: int, group: int, layers: Sequence[int]) -> list[int]:
    """How as many passes as in `held`, the first ones, lie on the chunks with most layers.

    From then on every forward pass follows a backward pass, whose groups go through the chunks the
    other way round.
    """
    if len(set(layers)) == 1:
        return held
    v, first = len(layers), sum(held)
    enough = (first // (group * v) + 3) * group  # then it goes on like this
    sizes = [min(group, m - done) for done in range(0, min(m, enough), group)]
    there = [[chunk, size] for size in sizes for chunk in range(v)]
    back = [[v - 1 - chunk, size] for chunk, size in there]
    while there and first >= there[0][1]:
        first -= there.pop(0)[1]
    if there:
        there[0][1] -= first
    held, heaviest, more, most = list(held), held, 0, 0
    while there:
        (to, left), (of, due) = there[0], back[0]
        step = min(left, due)
        held[to] += step
        held[of] -= step
        more += step * (layers[to] - layers[of])
        if more > most:
            heaviest, most = list(held), more
        for turns, rest in ((there, left - step), (back, due - step)):
            turns[0][1] = rest
            if not rest:
                turns.pop(0)
    return heaviest
