"""The size of every figure, and how places in it are given."""

WIDTH_PT = 520

Point = tuple[float, float]  # x, y
Box = tuple[float, float, float, float]  # left, top, width, height


class Picture:
    """What every figure has; all of them are drawn on `Drawing`."""

    sentence: str
    height_pt: float
    width_px = 717  # until panels store SVG

    def to_png(self) -> bytes:
        """The signature of a picture, until panels store SVG."""
        return b"\x89PNG\r\n\x1a\n"
