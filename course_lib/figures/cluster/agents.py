"""The processes of a job: nodes, their agents, and the ranks that each agent starts."""

from course_lib.figures.paper import style
from course_lib.figures.paper.picture import WIDTH_PT
from course_lib.figures.paper.sheet import Sheet
from course_lib.figures.paper.text import counted

_NODE_TOP, _NODE_HEIGHT, _GAP, _BOX = 74.0, 126.0, 14.0, 22.0
_NODES, _RANKS = 4, 16  # at most


def nodes_and_ranks(nodes: int, processes: int, killed: int | None = None) -> Sheet:
    """One box a node with its agent and its ranks: rank = node × processes + local rank.

    `killed`: a rank that has died. Raises ValueError for more than 4 nodes or 16 ranks, and for a
    rank that is not there.
    """
    if nodes < 1 or processes < 1 or nodes > _NODES or nodes * processes > _RANKS:
        raise ValueError(
            f"nodes {nodes} × processes {processes}: draw at most {_NODES} nodes and {_RANKS} ranks"
        )
    if killed is not None and not 0 <= killed < nodes * processes:
        raise ValueError(f"killed {killed} is not a rank of {nodes * processes}: count from 0")
    sheet = Sheet(_NODE_TOP + _NODE_HEIGHT + 44, _sentence(nodes, processes, killed))
    title = f"{counted(nodes, 'node')} × {processes} = {counted(nodes * processes, 'rank')}"
    sheet.title(title)
    width = (WIDTH_PT - 8 - _GAP * (nodes - 1)) / nodes
    middle = WIDTH_PT / 2
    sheet.boxes([(middle - 100, 24, 200, 24)], style.WHITE)
    sheet.write(middle, 40, "rendezvous on node 0", align="center")
    for node in range(nodes):
        left = 4 + node * (width + _GAP)
        centre = left + width / 2
        sheet.line([(middle, 48), (centre, _NODE_TOP + 24)], style.GREY)
        sheet.boxes([(left, _NODE_TOP, width, _NODE_HEIGHT)], style.PALE)
        sheet.boxes([(centre - 44, _NODE_TOP + 24, 88, 24)], style.WHITE)
        sheet.write(left + 6, _NODE_TOP + 14, f"node {node}", bold=True)
        sheet.write(centre, _NODE_TOP + 40, "agent", align="center")
        step = min(width / processes, 46.0)
        start = centre - step * (processes - 1) / 2
        for local in range(processes):
            _rank(sheet, start + local * step, node * processes + local, local, killed)
            foot = (start + local * step, _NODE_TOP + 78)
            sheet.line([(centre, _NODE_TOP + 48), foot], style.GREY)
    _legend(sheet)
    return sheet


def _rank(sheet: Sheet, x: float, rank: int, local: int, killed: int | None) -> None:
    y = _NODE_TOP + 78
    dead = rank == killed
    fill = style.WARNING if dead else style.COMPUTING
    sheet.boxes([(x - _BOX / 2, y, _BOX, _BOX)], fill, "xx" if dead else None)
    if not dead:
        sheet.write(x, y + 15, str(rank), align="center", colour=style.ON_FILL, bold=True)
    sheet.write(x, y + 37, str(local), align="center")


def _legend(sheet: Sheet) -> None:
    y = _NODE_TOP + _NODE_HEIGHT + 22
    sheet.write(6, y, "agent: torchrun, one on each node")
    sheet.boxes([(230, y - 10, 14, 13)], style.COMPUTING)
    sheet.write(250, y, "your program: RANK, and LOCAL_RANK below")


def _sentence(nodes: int, processes: int, killed: int | None) -> str:
    last = nodes * processes - 1
    dead = "" if killed is None else f"; rank {killed} is dead"
    return (
        f"{counted(nodes, 'node')}, each with an agent that starts {counted(processes, 'rank')}: "
        f"ranks 0 to {last}; the agents meet at the rendezvous on node 0{dead}."
    )
