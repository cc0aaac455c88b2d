"""The size of every figure, and how places in it are given."""

WIDTH_PT = 520

Point = tuple[float, float]  # x, y
Box = tuple[float, float, float, float]  # left, top, width, height
