"""The tables of one search as arrays: each row of the search looks up its line in each table."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from course_lib.theory.planner import tables
from course_lib.theory.planner.space import Question, Row
from course_lib.theory.planner.stages import StageKind, pad, stage_kinds


@dataclass(frozen=True)
class Table:
    """Lines of numbers, and for each row of the search the line that it has."""

    values: Any
    lines: Any

    def of(self, part: slice) -> Any:
        """The lines of some rows, one after the other."""
        return self.values[self.lines[part]]


class Tables:
    """All tables of one question."""

    def __init__(self, question: Question, rows: list[tuple[int, ...]]) -> None:
        import numpy

        self.question, self.rows = question, rows
        names = Row.__dataclass_fields__
        self.columns = dict(zip(names, numpy.array(rows).T, strict=True))
        self.pipelines = self._pipelines()
        self.kinds = self._table(("pp", "virtual_stages"), self._counts)
        self.held = self._held()
        self.activations = self._activations()
        self.states = self._states()
        self.messages = self._messages()

    def _table(self, names: tuple[str, ...], fill: Callable[[Row], Any], *more: Any) -> Table:
        """A table whose key is made of columns, and of `more` arrays of whole numbers."""
        import numpy

        keys = [self.columns[name] for name in names] + list(more)
        code = numpy.zeros(len(self.rows), dtype=numpy.int64)
        for key in keys:
            code = code * (int(key.max()) + 1) + key
        _, examples, lines = numpy.unique(code, return_index=True, return_inverse=True)
        values = [fill(Row(*self.rows[example])) for example in examples.tolist()]
        return Table(numpy.array(values, dtype=float), lines)

    def _pipelines(self) -> dict[tuple[int, int], list[StageKind]]:
        """Kinds of stages by (pp, virtual_stages), equally many of each."""
        shape = self.question.shape
        pairs = sorted({(row[1], row[-1]) for row in self.rows})  # pp and virtual_stages
        layouts = [Row(1, pp, 1, 1, 1, 1, pp, v).layout() for pp, v in pairs]
        padded = pad([stage_kinds(shape, layout) for layout in layouts])
        return dict(zip(pairs, padded, strict=True))

    def _kinds(self, row: Row) -> list[StageKind]:
        return self.pipelines[row.pp, row.virtual_stages]

    def _counts(self, row: Row) -> list[tuple[int, ...]]:
        """[kind, (dense, expert layers, first, last, stages)]."""
        return [(k.dense, k.experts, k.first, k.last, k.count) for k in self._kinds(row)]

    def _held(self) -> Table:
        """[kind, (dense, expert layers, embeddings, heads)] times micro-batches in flight."""
        import numpy

        # No schedule of the search holds more than with 2·pp micro-batches.
        steps = numpy.minimum(self.columns["accumulation"], 2 * self.columns["pp"])

        def fill(row: Row) -> list[tuple[int, ...]]:
            layout = row.layout()
            return [kind.held(layout) for kind in self._kinds(row)]

        return self._table(("pp", "virtual_stages"), fill, steps)

    def _activations(self) -> Table:
        """[recompute, part], the parts named by `parts`."""
        recipes = self.question.recipes
        self.parts = list(tables.activation_parts(self.question, recipes[0], Row(*self.rows[0])))
        tokens = self.columns["micro_batch"] * self.question.sequence // self.columns["cp"]

        def fill(row: Row) -> list[list[float]]:
            each = [tables.activation_parts(self.question, recipe, row) for recipe in recipes]
            return [list(one.values()) for one in each]

        return self._table(("tp",), fill, tokens)

    def _states(self) -> Table:
        """[kind, ZeRO stage, number], the numbers as in `state_parts`."""
        question = self.question
        alike: dict[tuple, list[list[float]]] = {}

        def fill(row: Row) -> list[list[list[float]]]:
            lines = []
            for kind in self._kinds(row):
                key = (row.tp, row.pp, row.ep, kind.dense, kind.experts, kind.first, kind.last)
                if key not in alike:
                    alike[key] = tables.state_parts(question, row, kind)
                lines.append(alike[key])
            return lines

        return self._table(("tp", "pp", "ep", "virtual_stages"), fill)

    def _messages(self) -> dict[str, Table]:
        """Seconds per micro-batch as [(recompute,) number], the numbers as in `tables`."""
        question, recipes = self.question, self.question.recipes
        dense, experts = tables.layer_numbers(question.shape)
        either = "dense" if experts is None else "expert"

        def each(fill: Callable, *more: Any) -> Callable[[Row], list]:
            return lambda row: [fill(question, recipe, row, *more) for recipe in recipes]

        found = {"cp": self._table(("tp", "cp"), each(tables.ring_parts, either))}
        if dense is not None:
            found["tp dense"] = self._table(("tp",), each(tables.tensor_parts, "dense"))
        if experts is not None:
            found["tp expert"] = self._table(("tp",), each(tables.tensor_parts, "expert"))
            found["ep"] = self._table(("tp", "ep"), each(tables.expert_parts))
        found["pp"] = self._table(
            ("tp", "pp"), lambda row: tables.boundary_parts(question, recipes[0], row)
        )
        return found
