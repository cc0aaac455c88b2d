"""The pipeline schedules there are, what each demands, and how many micro-batches it holds."""

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
    words: tuple[str, str] = ("stages", "micro_batches"),
) -> None:
    """Raise ValueError unless schedule `name` exists for these sizes.

    "interleaved" sends groups of `stages` micro-batches through each of its `virtual_stages` chunks
    in turn (Megatron-LM); "dualpipe" feeds half of the micro-batches in from either end. `words`:
    what the caller calls stages and micro-batches.
    """
    whole("words", len(words), 2, 2)
    stages_word, batches_word = words
    text("stages_word", stages_word)
    text("batches_word", batches_word)
    choice("schedule", name, SCHEDULES)
    whole(stages_word, stages)
    whole(batches_word, micro_batches)
    whole("virtual_stages", virtual_stages, most=MOST_CHUNKS)
    if name == "interleaved":
        divisible(batches_word, micro_batches, stages_word, stages)
    elif virtual_stages != 1:
        raise ValueError(
            f"virtual_stages {virtual_stages} has no meaning for schedule {name!r}: "
            "take schedule 'interleaved' or virtual_stages 1"
        )
    if name == "dualpipe":
        _even(stages_word, stages)
        _even(batches_word, micro_batches)
        whole(f"{batches_word} of dualpipe", micro_batches, least=2 * stages)


def _even(word: str, value: int) -> None:
    if value % 2:
        raise ValueError(
            f"{word} {value} is odd, and dualpipe works from both ends: take {value + 1}"
        )


def chunks_in_flight(
    name: str, stages: int, micro_batches: int, virtual_stages: int = 1, *, stage: int = 0
) -> dict[int, int]:
    """Micro-batches whose activations `stage` holds at its peak, for each of its chunks.

    With p stages and m micro-batches. naive: 1; gpipe: m; 1f1b: min(m, p - stage); zb1p: min(m, p),
    since the weights' part of backward waits; dualpipe: 1f1b in both directions, p + 1 in all;
    interleaved: 2(p - stage - 1) + (v - 1)p + 1 passes of chunks, v = virtual_stages.
    Sources: Narayanan et al. 2021, arXiv:2104.04473, section 2.2; Korthikanti et al. 2022,
    arXiv:2205.05198, section 4.2.3; Qi et al. 2023, arXiv:2401.10241 (ZB-H1);
    DeepSeek-V3, arXiv:2412.19437, table 2.
    """
    check_schedule(name, stages, micro_batches, virtual_stages)
    whole("stage", stage, least=0, most=stages - 1)
    if name == "interleaved" and virtual_stages > 1:
        return _interleaved_in_flight(stages, micro_batches, virtual_stages, stage)
    if name == "dualpipe":  # micro_batches / 2 is at least p
        return {chunk: stages - chunk for chunk in (stage, stages - 1 - stage)}
    held = {"naive": 1, "gpipe": micro_batches, "zb1p": stages}.get(name, stages - stage)
    return {stage: min(micro_batches, held)}


def _interleaved_in_flight(p: int, m: int, v: int, stage: int) -> dict[int, int]:
    """Passes that run before the first backward, dealt out: p to each chunk in turn."""
    passes = min(m * v, 2 * (p - stage - 1) + (v - 1) * p + 1)
    rounds, rest = divmod(passes, p * v)
    return {stage + turn * p: rounds * p + min(p, max(0, rest - turn * p)) for turn in range(v)}
