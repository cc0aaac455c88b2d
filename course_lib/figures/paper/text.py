"""Small helpers for layout and wording that several figures share."""


def elide(count: int, most: int) -> list[int | None]:
    """0 … count-1 in at most `most` entries: None stands for those left out."""
    if count <= most:
        return list(range(count))
    return [*range(most - 2), None, count - 1]


def counted(number: int, noun: str) -> str:
    """ "1 update", "1,000 updates", "8 micro-batches"."""
    ending = "es" if noun.endswith("ch") else "s"
    return f"{number:,} {noun}{'' if number == 1 else ending}"


def width_pt(text: str, size: float) -> float:
    """About as wide as `text` is in DejaVu Sans, and a little more."""
    return 0.62 * size * len(text.replace(": ", ":"))  # both together are one letter wide
