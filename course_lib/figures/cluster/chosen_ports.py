"""Which ports a setting chooses: one row for each setting, one box for each port."""

from collections.abc import Mapping, Sequence

from course_lib.figures.paper import style
from course_lib.figures.paper.drawing import Drawing
from course_lib.figures.paper.picture import WIDTH_PT
from course_lib.figures.paper.text import counted

_LEFT, _RIGHT, _TOP, _ROW, _MOST = 132.0, 54.0, 28.0, 30.0, 16


def chosen_ports(
    choices: Mapping[str, Sequence[str]], ports: Sequence[str], title: str = ""
) -> Drawing:
    """{"=mlx5_1": ["mlx5_1"]} among `ports`; a box shows what follows the last "_" of a name.

    Raises ValueError without a setting or ports, for more than 16 ports, and for a port unknown.
    """
    if not choices or not 0 < len(ports) <= _MOST:
        raise ValueError(f"choices and ports must name one or more, and at most {_MOST} ports")
    if unknown := {port for chosen in choices.values() for port in chosen} - set(ports):
        raise ValueError(f"{sorted(unknown)[0]!r} is not among the ports: name {', '.join(ports)}")
    told = "; ".join(
        f"{name} chooses {counted(len(chosen), 'port')} ({', '.join(chosen) or 'none'})"
        for name, chosen in choices.items()
    )
    drawing = Drawing(_TOP + _ROW * len(choices), f"Of {counted(len(ports), 'port')}: {told}.")
    drawing.write(0, 13, title, style.TITLE_PT, bold=True)
    width = (WIDTH_PT - _LEFT - _RIGHT) / len(ports)
    for row, (name, chosen) in enumerate(choices.items()):
        y = _TOP + _ROW * row
        drawing.write(_LEFT - 8, y + 15, name, 9, "right")
        drawing.write(WIDTH_PT, y + 15, counted(len(chosen), "port"), 9, "right")
        for place, port in enumerate(ports):
            fill = style.MESSAGES if port in chosen else style.PALE
            x, short = _LEFT + place * width, port.rpartition("_")[2]
            drawing.boxes([(x, y, width - 3, 22)], fill)
            drawing.write(x + (width - 3) / 2, y + 15, short, 9, "center", style.on(fill))
    return drawing
