"""Colours, hatches and text sizes that every figure shares."""

# Okabe and Ito's palette, told apart by colour-blind readers (jfly.uni-koeln.de/color).
BLUE = "#0072B2"
SKY = "#56B4E9"
GREEN = "#009E73"
YELLOW = "#F0E442"
ORANGE = "#E69F00"
VERMILION = "#D55E00"
PINK = "#CC79A7"
INK = "#222222"
GREY = "#767676"  # the lightest grey that is still readable as text on white (contrast 4.5 to 1)
PALE = "#EDEDED"
WHITE = "#FFFFFF"

# Colour and hatch always go together, so that a grey print-out can be read as well.
SERIES = (
    (SKY, None),
    (ORANGE, "//"),
    (GREEN, "--"),
    (YELLOW, "xx"),
    (PINK, "\\\\"),
    (VERMILION, "++"),
    (BLUE, None),
)

# In points. A notebook's own text is 10.5 points.
TEXT_PT = 10
TITLE_PT = 11
