"""Charts: extremes included, and what is refused."""

from collections.abc import Callable

from course_lib import figures
from course_lib.checking.gaps import in_words
from course_lib.figures.paper import style
from course_lib.figures.paper.drawing import Drawing
from course_lib.scratch.recovery import failures
from course_lib.theory.inputs.units import format_bytes

TITLE = "llama3-405b, accumulate-20, adamw-8bit: 14 bytes per parameter"


def line(**values: float) -> Drawing:
    return figures.number_line(values, lambda value: in_words(value, "B"))


CHARTS: dict[str, Callable[[], figures.Drawing]] = {
    "bars": lambda: figures.bars({"a": 3, "b": 0}, {"a": "3 rows", "b": "0 rows"}, TITLE),
    "bars by tens": lambda: figures.bars(
        {"all-reduced, the dense part": 4e11, "b": 52.0},
        format_bytes,
        "what 1 GPU moves",
        tens=True,
    ),
    "bars by tens, with marks": lambda: figures.bars(
        {"tensor parallel 8": 5596, "pp": 1.5e6},
        "{:,.0f}".format,
        "FLOP for each of 2 bytes",
        tens=True,
        marks={"ridge of NVLink": 2199, "ridge of the network": 19_788},
    ),
    "bars with a mark": lambda: figures.bars(
        {"a": 3.0}, "{:.0f}".format, TITLE, marks={"least": 5.0}
    ),
    "lines": lambda: figures.lines(
        {"a": [(1, 5.0), (1024, 4.9)], "b": [(1, 5.0), (1024, 5.0)]},
        "GPUs",
        "GB",
        TITLE,
        doubling=(True, False),
        level={"limit": 5},
        mark={"here": 512},
    ),
    "lines, tiny": lambda: figures.lines({"a": [(0, 0.0), (1, 0.003)]}, "updates", "rate", TITLE),
    "lines, next to nothing": lambda: figures.lines(
        {"a": [(0, 2.4e-7), (64, 0.25)]}, "code", "level", "levels", doubling=(False, True)
    ),
    "lines, doubling": lambda: figures.lines(
        {"a": [(3, 1e-3), (5, 1e6)]}, "x", "y", TITLE, doubling=(True, True)
    ),
    "loss": lambda: figures.loss({"two ranks": [3.0, 2.5, 2.0], "one process": [3.0, 2.4]}),
    "lanes": lambda: figures.lanes(
        {
            "a cluster": [("runs", 0, 14), ("waits", 14, 32), ("runs", 32, 60, "again")],
            "node n2": [("training", 3, 12), ("dead", 12, 30), ("training", 36, 60)],
        },
        "A node dies",
    ),
    "lanes, long": lambda: figures.lanes(
        {"one": failures.run(1e5, interval_s=1e3, save_s=60, mtbf_s=1e4, restart_s=600)}
    ),
    "lanes of two charts": lambda: figures.lanes(
        {
            "predicted": {"backward": [("backward", 0.0, 0.02, "1")], "link": []},
            "measured": {
                "backward": [("backward", n / 100, n / 100 + 0.01, str(n)) for n in range(60)],
                "link": [("link", 0.59, 0.61)],
            },
        },
        TITLE,
    ),
    "one loss": lambda: figures.loss({"a": [3.0]}),
    "number line": lambda: line(you=43, theory=100, measured=103),
    "number line, one value": lambda: line(theory=0),
    "number line, alike": lambda: line(you=125, theory=125, measured=125),
    "number line, far apart": lambda: line(you=3, theory=7.0e9, measured=7.1e9),
    "number line, at the right": lambda: line(you=7.1e9, theory=7.0e9, measured=3),
    "number line, tiny": lambda: line(you=2e-7, theory=1.25e-6, measured=1.1e-6),
    "number line, below 0": lambda: line(you=2.5, theory=-4, measured=-3.75),
    "number line, huge": lambda: line(you=1e21, theory=3.14e24, measured=3.15e24),
    "bars over a limit": lambda: figures.stacked_bars(
        {"a card": {"weights": 16.0, "gradients": 4.0}, "all": {"weights": 100.0, "gradients": 0}},
        "A title",
        lambda size: f"{size:.2f} GB",
        limit=("one card", 24.0),
    ),
    "bars below a limit": lambda: figures.stacked_bars(
        {"weights to tokens": {"weights": 2.8e9}, "tokens to weights": {"rows": 1e6}},
        "what a rank gathers or sends",
        format_bytes,
        colours={"rows": style.MESSAGES},
        limit=("one rank", 2.9e9),
    ),
    "grouped": lambda: figures.grouped_bars(
        {name: {"published": 7, "predicted": 0} for name in ("DDP", "SHARD_GRAD_OP, offloaded")},
        "largest batch",
        str,
        {"published": style.INK, "predicted": style.SKY},
    ),
    "curves of another kind": lambda: figures.loss({"a": [1.0, 3.5]}, "busiest expert / mean"),
    "bars of parts": lambda: figures.stacked_bars(
        {"a": {"tp": 150e9, "dp": 4e9}}, "Sent", format_bytes
    ),
    "bars, nothing": lambda: figures.stacked_bars({"a": {"idle": 0}, "b": {}}, "0 of all", str),
    "bars, many": lambda: figures.stacked_bars(
        {f"schedule {n}": {"computing": 90.5 - n, "idle": n / 7} for n in range(12)},
        "Twelve",
        "{:.1f} %".format,
        {"schedule 3": "holds 4 … 1 micro-batches"},
    ),
    "bars, many parts": lambda: figures.stacked_bars(
        {"a row": {f"part {n} of a long name": 1 + 9 * (n == 3) for n in range(8)}}, "Eight", str
    ),
}
BAD_CHARTS: list[Callable[[], object]] = [
    lambda: figures.stacked_bars({}, "t", str),
    lambda: figures.stacked_bars({"a": {"b": -1}}, "t", str),
    lambda: figures.grouped_bars({"a": {"b": 1}}, "t", str, {}),
    lambda: figures.grouped_bars({"a": {}}, "t", str, {}),
    lambda: figures.loss({}),
    lambda: figures.loss({"a": []}),
    lambda: figures.lanes({}),
    lambda: figures.lanes({"a": []}),
    lambda: figures.lanes({"a": [("runs", 2, 1)]}),
    lambda: figures.bars({}, str, "t"),
    lambda: figures.bars({"a": 0}, str, "t", tens=True),
    lambda: figures.bars({"a": 1}, str, "t", tens=True, marks={"b": 0}),
    lambda: figures.bars({"a": 1}, {"a": "1"}, "t", tens=True),
    lambda: figures.bars({"a": 1}, str, "t", marks={"b": -1}),
    lambda: figures.lines({}, "x", "y", "t"),
    lambda: figures.lines({"a": [(0, 2), (1, 2)]}, "x", "y", ""),
    lambda: figures.lines({"a": [(1, 2)]}, "x", "y", "t"),
    lambda: figures.lines({"a": [(0, 2), (1, 2)]}, "x", "y", "t", doubling=(True, False)),
    lambda: figures.number_line({}, str),
    lambda: figures.number_line({"they": 1}, str),
    lambda: figures.number_line({"you": float("nan")}, str),
]
