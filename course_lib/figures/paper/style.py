"""Colours, hatches and text sizes that every figure shares.

What each colour means, in every figure of the course:

| colour    | memory contents                    | activity of a processor       | other          |
|-----------|------------------------------------|-------------------------------|----------------|
| blue      | weights                            |                               |                |
| orange    | gradients                          | backward; input's gradient    |                |
| pink      | moments and master copies          | the optimizer's step          |                |
| sky       | activations                        | forward; computing in general |                |
| yellow    | gathered weights, buffers          | weights' gradient             |                |
| green     |                                    | messages and their time       | right, healthy |
| pale grey |                                    | idle                          | not chosen     |
| vermilion |                                    |                               | warnings       |

Text is INK or GREY on WHITE, INK on PALE, WARNING_TEXT where it warns; on a filled box ON_FILL, on
BLUE ON_DARK_FILL. These keep a contrast of 4.5 to 1 in the light and in the dark theme.
"""

import re
from collections.abc import Sequence

# Okabe and Ito's palette, distinguishable by colour-blind readers (jfly.uni-koeln.de/color).
BLUE = "#0072B2"
SKY = "#56B4E9"
GREEN = "#009E73"
YELLOW = "#F0E442"
ORANGE = "#E69F00"
VERMILION = "#D55E00"
PINK = "#CC79A7"

# Colours of the page: in themed SVG, exactly these are replaced by the theme's.
INK = "#222222"
GREY = "#767676"  # the lightest grey that is still readable as text on white (contrast 4.5 to 1)
PALE = "#EDEDED"
WHITE = "#FFFFFF"
WARNING_TEXT = "#A84F09"  # three parts of VERMILION and one of INK: readable on WHITE and PALE
# What JupyterLab's dark theme and the pages of the site have in their place.
DARK = {INK: "#FFFFFF", GREY: "#B8B8B8", PALE: "#424242", WHITE: "#111111"}

# One colour for each meaning, in every figure of the course. A figure of anything else uses INK,
# GREY and PALE, or SERIES where it needs colours without a meaning.
WEIGHTS = BLUE
GRADIENTS = ORANGE
STATES = PINK  # moments and master copies of the optimizer; all states of the model together
ACTIVATIONS = SKY
TEMPORARY = YELLOW  # gathered weights, buffers, workspaces
MESSAGES = GREEN  # bytes in flight and the time they take
COMPUTING = SKY  # forward and backward together
FORWARD = SKY  # computes activations
BACKWARD = ORANGE  # computes gradients
INPUT_GRADIENT = ORANGE  # the half of backward that the neighbour waits for
WEIGHT_GRADIENT = YELLOW  # the half that no other stage waits for
UPDATE = PINK  # the optimizer's step
IDLE = PALE
WARNING = VERMILION  # over a limit, lost, late
YOU = ORANGE  # on a number line: what the learner predicted
THEORY = BLUE
MEASURED = GREEN

# The axes of a mesh, coloured by what their groups share or send.
AXES = {"tp": WEIGHTS, "cp": PINK, "ep": YELLOW, "dp": GRADIENTS, "pp": ACTIVATIONS}

# Text on a filled box keeps its colour in the dark theme; INK turns light there.
ON_FILL = "#111111"  # on SKY, ORANGE, YELLOW, PINK, GREEN, VERMILION
ON_DARK_FILL = "#FFFFFE"  # on BLUE


def lighter(colour: str) -> str:
    """The colour mixed half with white, for a second item of the same meaning."""
    parts = (int(colour[place : place + 2], 16) for place in (1, 3, 5))
    return "#" + "".join(f"{(part + 255) // 2:02X}" for part in parts)


Look = tuple[str, str | None]  # colour, hatch

# The looks of a trace's words. A word that is missing here is looked up by its first part
# ("weights of layer 1"), and otherwise takes a colour of SERIES.
MEANINGS: dict[str, Look] = {
    **dict.fromkeys(("weights", "rows", "shard"), (WEIGHTS, None)),
    **dict.fromkeys(("gradients", "gradient", "summed", "mean"), (GRADIENTS, None)),
    **dict.fromkeys(("own gradients", "own"), (GRADIENTS, "/")),
    **dict.fromkeys(("states", "optimizer", "master", "save"), (STATES, None)),
    "activations": (ACTIVATIONS, None),
    "gradient of the input": (INPUT_GRADIENT, None),
    "gradient of the weights": (WEIGHT_GRADIENT, None),
    "unfinished activations": (ACTIVATIONS, "/"),  # to be summed over ranks
    "unfinished gradients": (GRADIENTS, "/"),
    **dict.fromkeys(("gathered", "whole weights", "buffers", "temporary"), (TEMPORARY, None)),
    **dict.fromkeys(("messages", "all-gather", "gather", "all-reduce", "link"), (MESSAGES, None)),
    **dict.fromkeys(("message", "communication", "copying"), (MESSAGES, None)),
    **dict.fromkeys(("torch.distributed", "alike"), (MESSAGES, None)),
    "scatter": (MESSAGES, "/"),
    **dict.fromkeys(("computing", "training", "runs", "work", "forward"), (FORWARD, None)),
    **dict.fromkeys(("computation", "product", "your program"), (FORWARD, None)),
    "prepare": (TEMPORARY, "x"),
    **dict.fromkeys(("backward", "input's gradient"), (BACKWARD, None)),
    **dict.fromkeys(("reduce-scatter", "reduce"), (lighter(MESSAGES), None)),
    "weights' gradient": (WEIGHT_GRADIENT, None),
    **dict.fromkeys(("update", "updating"), (UPDATE, None)),
    **dict.fromkeys(("idle", "waits", "waiting", "starts", "restart", "torch"), (IDLE, None)),
    "done": (PALE, None),
    "now": (INK, None),  # a frame around the active cell
    **dict.fromkeys(("dead", "lost", "hangs", "late", "dropped"), (WARNING, None)),
    **dict.fromkeys(("exposed", "differs", "slow", "never full"), (WARNING, None)),
    **{"fast": (MESSAGES, None), "copy": (WARNING, "/")},
    "standing": (INK, None),
    **dict.fromkeys(("others", "zero", "again", "after", "not chosen"), (PALE, None)),
    **dict.fromkeys(("padding", "elsewhere", "expected", "missing"), (WHITE, None)),
    **dict.fromkeys(("not tested", "not used"), (WHITE, None)),
    "framework overhead": (GREY, None),
    "intermediate results": (ACTIVATIONS, None),
    "inputs and labels": (PALE, None),
    "new work": (FORWARD, None),
    "done again": (FORWARD, "/"),
    "lost work": (WARNING, "x"),
    "nobody has noticed": (IDLE, None),
    "in the queue": (TEMPORARY, None),
    "starting": (MESSAGES, "-"),
    **dict.fromkeys(("computes", "own node"), (INK, None)),
    **{axis: (colour, None) for axis, colour in AXES.items()},
}


def meaning(word: str) -> Look:
    """The look of a word from MEANINGS; any other word gets a fixed look of SERIES.

    "later forward" is lighter than "forward": a second item of the same meaning. A word that ends
    with a number ("rank 2") takes the look at that index.
    """
    if word.startswith("later "):
        fill, hatch = meaning(word.removeprefix("later "))
        return lighter(fill), hatch
    known = MEANINGS.get(word) or MEANINGS.get(word.split()[0].strip(":") if word else "")
    number = re.search(r"\d+$", word)
    place = int(number[0]) if number else sum(map(ord, word))
    fill, hatch = known or SERIES[place % len(SERIES)]
    return fill, hatch and hatch[0]


def on(fill: str) -> str:
    """The colour of text on a box filled with `fill`."""
    if fill in (WHITE, PALE):
        return INK
    return ON_DARK_FILL if fill in (BLUE, GREY) else ON_FILL


# Hatches distinguish colours of equal lightness, so that greyscale print is readable as well.
SERIES: tuple[Look, ...] = (
    (SKY, None),
    (ORANGE, "//"),
    (GREEN, None),
    (YELLOW, None),
    (PINK, "\\\\"),
    (BLUE, None),
    (VERMILION, "xx"),
)
# Colours of lines without a meaning, and whether dashed; contrast 3 to 1 against the page.
LINES = ((INK, False), (BLUE, True), (GREEN, False), (PINK, True))


def looks(names: Sequence[str]) -> dict[str, Look]:
    """Assign a look of SERIES to each name."""
    return dict(zip(names, SERIES, strict=False))


# Sizes in points. A notebook's own text is 10.5 points.
TEXT_PT = 10
TITLE_PT = 11
OUTLINE_PT = 0.5
PADDING_PT = 9  # 12 pixels between a figure's edge and its content
