"""Ring attention, one moment: which blocks of the mask are computed by whom, and who waits."""

from course_lib.figures.paper import style
from course_lib.figures.paper.arrow import arrow
from course_lib.figures.paper.drawing import Drawing
from course_lib.figures.paper.picture import WIDTH_PT, Box
from course_lib.figures.paper.text import counted
from course_lib.theory.network.context_steps import RingAttentionSteps, ScoreBlock

_LEFT, _TOP, _MASK = 58.0, 58.0, 208.0
_RIGHT = 300.0  # where the ranks' own lines begin
_STAIRS = 4  # steps in which a block on the diagonal is drawn


def ring_attention_step(result: RingAttentionSteps, moment: int) -> Drawing:
    """Left: queries (rows) by keys (columns). Right: each rank's keys and its time so far.

    Moment 0 is the start; then computing and hops follow each other: 2n moments in all.
    """
    step, computing = (moment - 1) // 2, moment % 2 == 1
    drawing = Drawing(_TOP + _MASK + 62, ring_attention_sentence(result, moment))
    if moment == 0:
        title = "before the first step: every rank has its own keys and values"
    elif computing:
        title = f"step {step + 1} of {result.ranks}: compute"
    else:
        title = f"hop {step + 1} of {result.ranks - 1}: keys and values move to the next rank"
    drawing.title(title)
    _mask(drawing, result, moment)
    _ranks(drawing, result, moment)
    return drawing


def ring_attention_sentence(result: RingAttentionSteps, moment: int) -> str:
    """Who computes how many blocks now, and how busy the ranks are in all, in words."""
    order = "zig-zag" if result.zigzag else "in order"
    step = max(moment - 1, 0) // 2
    blocks = ", ".join(str(len(own)) for own in result.steps[step].blocks)
    what = (
        "nothing is computed yet"
        if not moment
        else f"the ranks compute {blocks} blocks"
        if moment % 2
        else f"keys and values make hop {step + 1}"
    )
    return (
        f"Ring attention on {counted(result.ranks, 'rank')}, slices {order}, moment {moment} of "
        f"{2 * result.ranks - 1}: {what}. All steps last as long as {result.lasting_scores:,} "
        f"scores; the ranks are busy {result.busy_fraction:.0%} of that time."
    )


def _owner(result: RingAttentionSteps, chunk: int) -> int:
    """The rank whose queries a chunk holds."""
    if result.zigzag and chunk >= result.ranks:
        return 2 * result.ranks - 1 - chunk
    return chunk


def _mask(drawing: Drawing, result: RingAttentionSteps, moment: int) -> None:
    count = result.chunk_count
    side = _MASK / count
    over = (moment + 1) // 2  # steps that have begun
    now: list[Box] = []
    done: list[Box] = []
    ahead: list[Box] = []
    spoken: list[tuple[float, float, str]] = []
    for place, step in enumerate(result.steps):
        for rank, blocks in enumerate(step.blocks):
            for block in blocks:
                active = moment % 2 == 1 and place == over - 1
                look = now if active else done if place < over else ahead
                look += _shape(block, side)
                if active:
                    x = _LEFT + (block.keys + (0.32 if block.masked else 0.5)) * side
                    y = _TOP + (block.queries + (0.72 if block.masked else 0.5)) * side
                    spoken.append((x, y + 3.2, str(rank)))
    drawing.boxes([(_LEFT, _TOP, _MASK, _MASK)], "none", edge=style.GREY)
    drawing.boxes(ahead, style.WHITE, edge=style.GREY)
    drawing.boxes(done, style.PALE, edge=style.GREY)
    drawing.boxes(now, style.FORWARD, edge=style.FORWARD)
    drawing.write_all(spoken, 9 if side > 20 else 7.5, "center", style.ON_FILL)
    size = 9 if side > 20 else 7.5
    numbers = [(c, str(_owner(result, c))) for c in range(count)]
    rows = [(_LEFT - 5, _TOP + (c + 0.5) * side + 3.5, text) for c, text in numbers]
    drawing.write_all(rows, size, "right")
    columns = [(_LEFT + (c + 0.5) * side, _TOP - 5, text) for c, text in numbers]
    drawing.write_all(columns, size, "center")
    drawing.write(_LEFT, _TOP - 20, "keys and values, by the rank of their tokens", 9)
    drawing.write(0, _TOP + 12, "queries", 9)
    drawing.write(0, _TOP + 24, "of rank", 9)
    drawing.write(_LEFT + _MASK - 6, _TOP + 18, "later keys: hidden", 9, "right", style.GREY)


def _shape(block: ScoreBlock, side: float) -> list[Box]:
    """A square; on the diagonal its lower half, in stairs."""
    x, y = _LEFT + block.keys * side, _TOP + block.queries * side
    if not block.masked:
        return [(x, y, side, side)]
    stair = side / _STAIRS
    return [(x, y + i * stair, (i + 1) * stair, stair) for i in range(_STAIRS)]


def _ranks(drawing: Drawing, result: RingAttentionSteps, moment: int) -> None:
    """For each rank: whose keys it has now, and a strip of time with its work filled."""
    ranks, hop = result.ranks, moment > 0 and moment % 2 == 0
    pitch = _MASK / ranks
    over = (moment + 1) // 2
    held = result.steps[min(moment // 2, ranks - 1)].owners
    bar = _RIGHT + 84
    # The slices in order take longest: both orders share one scale.
    longest = ranks * 4 * (result.chunk_tokens if result.zigzag else result.chunk_tokens / 2) ** 2
    scale = (WIDTH_PT - bar) / longest
    drawing.write(_RIGHT + 38, _TOP - 20, "has keys", 9, "center")
    drawing.write(_RIGHT + 38, _TOP - 9, "of rank", 9, "center")
    drawing.write(bar, _TOP - 9, "time: work and waiting", 9)
    for rank in range(ranks):
        y = _TOP + rank * pitch + max(0, pitch / 2 - 9)
        high = min(16.0, pitch - 4)
        drawing.write(_RIGHT - 12, y + high - 4, f"rank {rank}" if pitch > 14 else str(rank), 9)
        drawing.boxes([(_RIGHT + 28, y, 20, high)], style.MESSAGES if hop else style.PALE)
        colour = style.ON_FILL if hop else style.INK
        drawing.write(_RIGHT + 38, y + high - 4, str(held[rank]), 9, "center", colour)
        if hop and rank + 1 < ranks and pitch > 22:
            arrow(drawing, (_RIGHT + 38, y + high), (_RIGHT + 38, y + pitch), style.MESSAGES, 2)
        x = bar
        for step in range(over):
            lasts, works = max(result.scores(step)), result.scores(step)[rank]
            drawing.boxes([(x, y, lasts * scale, high)], style.IDLE, edge=style.GREY)
            drawing.boxes([(x, y, works * scale, high)] if works else [], style.FORWARD)
            x += lasts * scale
    passed = sum(max(result.scores(step)) for step in range(over))
    y = _TOP + _MASK + 18
    drawing.write(bar, y, f"time so far: {passed:,} scores", 9)
    drawing.write(bar, y + 13, f"of {result.lasting_scores:,} in all", 9, colour=style.GREY)
    drawing.write(_LEFT, y, "blue: computed now, by the rank written in it", 9)
    drawing.write(_LEFT, y + 13, "shaded: done; empty: to come", 9, colour=style.GREY)
    drawing.write(
        _LEFT,
        y + 26,
        f"one square: {result.chunk_tokens} × {result.chunk_tokens} tokens",
        9,
        colour=style.GREY,
    )
