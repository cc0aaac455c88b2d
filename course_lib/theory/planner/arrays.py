"""The tables of a search as arrays: every row of the search indexes one line of each table."""

from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from course_lib.theory.inputs.hardware import Cluster
from course_lib.theory.planner import tables
from course_lib.theory.planner.space import Question, Row
from course_lib.theory.planner.tables import Numbers, StageKind, pad, stage_kinds
from course_lib.theory.step.assumptions import Assumptions

if TYPE_CHECKING:
    from numpy import float64, int64
    from numpy.typing import NDArray

    Array = NDArray[float64]

Lines = dict[tuple[int, ...], Any]  # a table's lines by the values that they depend on
MOST_LINES, MOST_TABLES = 1024, 64  # limits of the cache
kept: dict[tuple[Hashable, ...], Lines] = {}


def lines_of(*asked: Hashable) -> Lines:
    """The cached lines of earlier searches for the cache key `asked`.

    Successive questions of a slider differ in the global batch, the nodes or the sequence, and no
    table depends on all three, so some tables can be reused.
    """
    if len(kept) >= MOST_TABLES:
        kept.clear()
    return kept.setdefault(asked, {})


def asked_of_tables(question: Question) -> Assumptions:
    """The assumptions on which tables depend; all others are reset."""
    return replace(
        question.assumptions,
        overlap={},
        message_touches=0,
        message_sms=0,
        layer_efficiency=None,
        attention_efficiency=None,
        attention_kernel="flash-2",
    )


@dataclass(frozen=True)
class Table:
    """Lines of named numbers, and for each row of the search the index of its line.

    `values` is [line, …, name]; the axes in between depend on the table.
    """

    names: tuple[str, ...]
    values: "Array"
    lines: "NDArray[int64]"

    def of(self, part: slice) -> "dict[str, Array]":
        """The numbers of the rows in `part` by name, each an array [row, …]."""
        values = self.values[self.lines[part]]
        return {name: values[..., index] for index, name in enumerate(self.names)}


class Tables:
    """All tables of one question."""

    def __init__(self, question: Question, rows: list[Row]) -> None:
        import numpy

        self.question, self.rows = question, rows
        self.assumed = repr(asked_of_tables(question))
        columns = numpy.array(rows).T
        self.columns: dict[str, NDArray[int64]] = dict(zip(Row._fields, columns, strict=True))
        self.pipelines = self._pipelines()
        self.kinds = self._table(("pp", "virtual_stages"), self._counts)
        self.held = self._held()
        self.activations = self._activations()
        self.states = self._states()
        self.messages = self._messages()

    def _table(
        self,
        names: tuple[str, ...],
        fill: Callable[[Row], Any],
        *more: "NDArray[int64]",
        known: Lines | None = None,
        even: Callable[[list[Any]], list[Any]] = list,
    ) -> Table:
        """Build a table whose key consists of the columns `names` and the integer arrays `more`.

        `fill` computes the line of a row: named numbers, or lists of them. `known` are cached
        lines. `even` makes the lines equally long.
        """
        import numpy

        keys = [self.columns[name] for name in names] + list(more)
        code = numpy.zeros(len(self.rows), dtype=numpy.int64)
        for key in keys:
            code = code * (int(key.max()) + 1) + key
        _, examples, lines = numpy.unique(code, return_index=True, return_inverse=True)
        if known is None or len(examples) > MOST_LINES:
            known = {}
        elif len(known) + len(examples) > MOST_LINES:
            known.clear()
        filled = []
        for example in examples:
            line = tuple(int(key[example]) for key in keys)
            if line not in known:
                known[line] = fill(self.rows[example])
            filled.append(known[line])
        filled = even(filled)
        return Table(_names(filled), numpy.array(_values(filled), dtype=float), lines)

    def _pipelines(self) -> dict[tuple[int, int], list[StageKind]]:
        """Kinds of stages by (pp, virtual_stages), padded to equal length."""
        shape = self.question.shape
        pairs = sorted({(row.pp, row.virtual_stages) for row in self.rows})
        rows = [Row(pp=pp, accumulation=pp, virtual_stages=virtual) for pp, virtual in pairs]
        padded = pad([stage_kinds(shape, row.layout()) for row in rows])
        return dict(zip(pairs, padded, strict=True))

    def _kinds(self, row: Row) -> list[StageKind]:
        return self.pipelines[row.pp, row.virtual_stages]

    def _counts(self, row: Row) -> list[Numbers]:
        """[kind]: numbers of layers and ends in a stage, and number of such stages."""
        names = ("dense", "experts", "first", "last")
        return [
            {name: getattr(kind, name) for name in names} | {"stages": kind.count}
            for kind in self._kinds(row)
        ]

    def _held(self) -> Table:
        """[kind, moment]: layers and ends times micro-batches in flight, at candidate peaks."""
        import numpy

        # More micro-batches do not raise the peak: see `schedule_rules.full_moments`.
        enough = numpy.where(self.columns["virtual_stages"] > 1, 3, 1) * self.columns["pp"]
        steps = numpy.minimum(self.columns["accumulation"], enough)

        def fill(row: Row) -> list[list[Numbers]]:
            layout, kinds = row.layout(), self._kinds(row)
            held = {
                kind.stage: [dict(moment._asdict()) for moment in kind.held(layout)]
                for kind in kinds
                if kind.count
            }
            return [held[kind.stage] for kind in kinds]

        known = lines_of("held", self.question.shape, len(next(iter(self.pipelines.values()))))
        return self._table(("pp", "virtual_stages"), fill, steps, known=known, even=_equally_many)

    def _activations(self) -> Table:
        """[recompute]: the numbers of `activation_parts`."""
        tokens = self.columns["micro_batch"] * self.question.sequence // self.columns["cp"]

        def fill(row: Row) -> list[Numbers]:
            recipes = self.question.recipes
            return [tables.activation_parts(self.question, recipe, row) for recipe in recipes]

        known = self._known("activations", self.question.sequence)
        return self._table(("tp",), fill, tokens, known=known)

    def _known(self, table: str, *asked: Hashable) -> Lines:
        """Cached lines of a table for this model, recipes and assumptions, and the key `asked`."""
        question = self.question
        return lines_of(table, question.shape, question.recipes, self.assumed, *asked)

    def _states(self) -> Table:
        """[kind, ZeRO stage]: the numbers of `state_parts`."""
        question = self.question
        filled: dict[tuple[int, ...], list[Numbers]] = {}

        def fill(row: Row) -> list[list[Numbers]]:
            kinds = self._kinds(row)
            keys = [
                (row.tp, row.pp, row.ep, kind.dense, kind.experts, kind.first, kind.last)
                for kind in kinds
            ]
            new = {k: kind for k, kind in zip(keys, kinds, strict=True) if k not in filled}
            if new:
                parts = tables.state_parts(question, row, list(new.values()))
                filled.update(zip(new, parts, strict=True))
            return [filled[key] for key in keys]

        width = len(self._kinds(self.rows[0]))  # other searches may have more
        known = self._known("states", question.cluster, width)
        return self._table(("tp", "pp", "ep", "virtual_stages"), fill, known=known)

    def _messages(self) -> dict[str, Table]:
        """Tables [recompute] of a micro-batch's messages, by axis.

        Tensor parallelism has one table for each kind of layer.
        """
        cluster = self.question.cluster
        kinds = list(tables.layer_numbers(self.question.shape))
        node = replace(cluster, nodes=1)  # tp stays within a node
        messages = {f"tp_{kind}": self._along("tp", kind, node) for kind in kinds}
        # cp's messages do not depend on the MLP, pp's do not depend on the kind of layer.
        messages |= {"cp": self._along("cp", kinds[-1], cluster)}
        messages |= {"pp": self._along("pp", "dense", cluster)}
        if "experts" in kinds:
            messages |= {"ep": self._along("ep", "experts", cluster)}
        return messages

    def _along(self, axis: str, kind: str, cluster: Cluster) -> Table:
        """[recompute]: messages along one axis for a model of one layer, under pp one per stage."""
        question = self.question
        recipes = question.recipes[: 1 if axis == "pp" else None]  # same messages for all

        def fill(row: Row) -> list[Numbers]:
            layers = row.pp if axis == "pp" else 1
            shape = tables.toy(question.shape, layers, kind)
            ranks = {"pp": question.cluster.world // row.tp // row.pp, "ep": row.ep}.get(axis, 1)
            alone = Row(**{"tp": row.tp, "dp": ranks, axis: getattr(row, axis)})
            return [
                tables.message_lines(question, recipe, alone, shape=shape, axis=axis)
                for recipe in recipes
            ]

        known = self._known(f"{axis}_{kind}", question.sequence, cluster)
        return self._table(tuple(dict.fromkeys(("tp", axis))), fill, known=known)


def _equally_many(lines: list[list[list[Numbers]]]) -> list[list[list[Numbers]]]:
    """Lines with their lists of moments padded to equal length with the last moment."""
    most = max(len(moments) for line in lines for moments in line)
    return [[held + held[-1:] * (most - len(held)) for held in line] for line in lines]


def _names(filled: Any) -> tuple[str, ...]:
    """The names in nested lists of named numbers."""
    return tuple(filled) if isinstance(filled, dict) else _names(filled[0])


def _values(filled: Any) -> Any:
    """Nested lists of named numbers with the names removed."""
    return list(filled.values()) if isinstance(filled, dict) else [_values(one) for one in filled]
