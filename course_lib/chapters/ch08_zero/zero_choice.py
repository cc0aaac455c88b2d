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
