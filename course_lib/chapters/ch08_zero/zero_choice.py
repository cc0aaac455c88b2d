"""Choice of a ZeRO stage: the largest model that fits, and the fewest GPUs."""

from course_lib.checked import checked
from course_lib.theory.inputs.layout import Layout
from course_lib.theory.inputs.recipe import Recipe
from course_lib.theory.memory.states import model_states
from course_lib.validation import number, whole


@checked
def whole_and_cut(zero_stage: int, recipe: Recipe) -> tuple[int, int]:
    """Bytes per parameter that every GPU keeps whole (w), and that are cut over the GPUs (c).

    With the recipe "mixed-16", stage 0: 16 and 0; 1: 4 and 12; 2: 2 and 14; 3: 0 and 16. Offloaded
    states are in neither. Both follow from `model_states`: 1 parameter on 1 GPU takes w + c bytes,
    2 parameters take 2w + c on each of 2 GPUs. Source: ZeRO, arXiv:1910.02054, figure 1.
    """
    whole("zero_stage", zero_stage, least=0, most=3)
    alone = model_states(1, recipe).total_bytes
    each_of_two = model_states(2, recipe, Layout(dp=2, zero_stage=zero_stage)).total_bytes
    everywhere = each_of_two - alone
    return everywhere, alone - everywhere


@checked
def fewest_ranks(parameters: int, zero_stage: int, room_bytes: float, recipe: Recipe) -> int | None:
    """The fewest GPUs whose `room_bytes` hold the model states; None if no number does.

    P·w + ceil(P/n)·c ≤ room, with w and c from `whole_and_cut`. Nothing else is counted: subtract
    activations and temporary buffers of the passes from the room first.
    """
    whole("parameters", parameters)
    number("room_bytes", room_bytes, least=0)
    everywhere, cut = whole_and_cut(zero_stage, recipe)
    left = room_bytes - parameters * everywhere
    if left < cut or not cut:  # no room for a part of one parameter, or nothing is cut
        return 1 if not cut and left >= 0 else None
    return -(-parameters // int(left // cut))


@checked
def most_parameters(zero_stage: int, ranks: int, room_bytes: float, recipe: Recipe) -> int:
    """The largest model whose states fit in `room_bytes` on each of `ranks` GPUs.

    About room / (w + c/n), with w and c from `whole_and_cut`; as in `fewest_ranks`, states only.
    """
    whole("ranks", ranks)
    number("room_bytes", room_bytes, least=0)
    everywhere, cut = whole_and_cut(zero_stage, recipe)
    fits, too_many = 0, int(room_bytes) * ranks // (everywhere * ranks + cut) + 1
    while too_many - fits > 1:  # parts are rounded up, so the quotient may be too large
        middle = (fits + too_many) // 2
        if middle * everywhere + -(-middle // ranks) * cut <= room_bytes:
            fits = middle
        else:
            too_many = middle
    return fits


Rows = dict[str, list[tuple[str, float, float, str]]]


@checked
def stage_timeline(
    zero_stage: int, blocks: int, forward_s: float, half_s: float, *, waits: bool = False
) -> Rows:
    """One step of a stage, {"computing": […], "messages": […]}: (what, from, to, block) in seconds.

    The model is cut into `blocks`; one computes `forward_s` forward and twice that backward, and
    half of an all-reduce of it takes `half_s`. Messages share one link and overlap with computing:
    stage 0 sends gradients during backward, stages 1 and 2 gather the last update's weights during
    forward, stage 3 gathers the next block while one computes. `waits`: stage 1 sends everything
    after backward, as `scratch.zero` does. The update takes no time. Raises ValueError for another
    stage that waits.
    """
    whole("zero_stage", zero_stage, least=0, most=3)
    whole("blocks", blocks, least=1, most=1000)
    number("forward_s", forward_s, least=0)
    number("half_s", half_s, least=0)
    if waits and zero_stage != 1:
        raise ValueError(f"waits must be False in stage {zero_stage}: only stage 1 can wait")
    rows: Rows = {"computing": [], "messages": []}
    ends: dict[tuple[str, int], float] = {}
    free = dict.fromkeys(rows, 0.0)

    def do(what: str, block: int, seconds: float, *needs: tuple[str, int]) -> None:
        row = "computing" if what in ("forward", "backward") else "messages"
        start = max([free[row], *(ends.get(need, 0.0) for need in needs)])
        ends[what, block] = free[row] = start + seconds
        rows[row].append((what, start, free[row], str(block)))

    for block in range(1, blocks + 1):
        if zero_stage and not waits:
            # Stage 3 gathers a block when the one before it begins to compute.
            begun = [("forward", block - 2)] if zero_stage == 3 else []
            do("all-gather", block, half_s, *begun)
        do("forward", block, forward_s, ("all-gather", block))
    for block in range(blocks, 0, -1):
        if zero_stage == 3:
            do("all-gather", block, half_s, ("backward", block + 2), ("forward", blocks - 1))
            if block < blocks:
                do("reduce-scatter", block + 1, half_s, ("backward", block + 1))
        do("backward", block, 2 * forward_s, ("all-gather", block), ("forward", blocks))
        if zero_stage == 0:
            do("all-reduce", block, 2 * half_s, ("backward", block))
        elif zero_stage < 3 and not waits:
            do("reduce-scatter", block, half_s, ("backward", block))
    if zero_stage == 3:
        do("reduce-scatter", 1, half_s, ("backward", 1))
    for what in ("reduce-scatter", "all-gather") if waits else ():
        for block in range(blocks, 0, -1):
            do(what, block, half_s, ("backward", 1))
    return rows
