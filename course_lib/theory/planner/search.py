"""Memory and time of all layouts of a search, vectorised with numpy from the filled tables.

Arrays have the axes [row, recompute] or [row, recompute, ZeRO stage]; the kinds of stages are
looped over. A test checks both results against `memory.peak.worst_stage` and `step.step_time`.
"""

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from course_lib.theory.planner.arrays import Tables, asked_of_tables
from course_lib.theory.planner.space import ZERO_STAGES, Question, Row, rows
from course_lib.theory.planner.tables import KNOWN
from course_lib.theory.step.stage import HIDING_ORDER, Hideable, attention_rate, layer_rate

if TYPE_CHECKING:
    from numpy import bool_, float64
    from numpy.typing import NDArray

    Array = NDArray[float64]
    # (count, table, part, x): `count` times the linear function of a table's part at x.
    _Line = tuple[Any, str, str, Any]

CHUNK_ROWS = 4096  # arrays of this many rows fit into a CPU cache


@dataclass(frozen=True)
class Found:
    """All layouts of a question: bytes of the worst stage and seconds of a step.

    `memory_bytes` and `step_s` are [row, recompute, ZeRO stage]; `differs` is [row, ZeRO stage],
    False for ZeRO without ranks to shard over, which duplicates stage 0, and for stages that the
    question does not allow. `tables` are those from which both were computed.
    """

    rows: list[Row]
    memory_bytes: "Array"
    step_s: "Array"
    differs: "NDArray[bool_]"
    tables: Tables = field(repr=False, compare=False)

    @property
    def count(self) -> int:
        """Number of layouts, each kind of recomputation counted separately."""
        kinds: int = self.memory_bytes.shape[1]
        return int(self.differs.sum()) * kinds


def search(question: Question) -> Found:
    """Evaluate every layout of the question. Raises ValueError if there is none."""
    import numpy

    layouts = rows(question)
    if not layouts:
        raise ValueError(_nothing_to_search(question))
    tables = Tables(question, layouts)
    size = (len(layouts), len(question.recipes), len(ZERO_STAGES))
    memory, time = numpy.empty(size), numpy.empty(size)
    for start in range(0, len(layouts), CHUNK_ROWS):
        part = slice(start, start + CHUNK_ROWS)
        chunk = _Chunk(question, tables, part)
        memory[part], time[part] = chunk.memory(), chunk.time()
    ranks = tables.columns["dp"] * tables.columns["cp"]
    stages = numpy.array(ZERO_STAGES)
    allowed = numpy.array([question.allows("zero_stage", stage) for stage in ZERO_STAGES])
    differs = numpy.where(ranks[:, None] > 1, allowed, stages == 0)
    return Found(layouts, memory, time, differs, tables)


def search_again(found: Found, question: Question) -> Found:
    """Evaluate the same layouts under the assumptions of `question`, which change only times.

    Overlap and FLOP rates are applied after the tables, which take most of a search; only other
    changes require filling the tables again.
    """
    import numpy

    tables = found.tables
    if asked_of_tables(question) != asked_of_tables(tables.question):
        tables = Tables(question, found.rows)
    time = numpy.empty_like(found.step_s)
    for start in range(0, len(found.rows), CHUNK_ROWS):
        part = slice(start, start + CHUNK_ROWS)
        time[part] = _Chunk(question, tables, part).time()
    return replace(found, step_s=time, tables=tables)


def _nothing_to_search(question: Question) -> str:
    sentence = (
        f"global_batch {question.global_batch} and sequence {question.sequence} cannot be "
        f"shared out over {question.cluster.world} GPUs: take a global_batch that the number "
        "of GPUs divides"
    )
    if question.only:
        allowed = (f"{name} {', '.join(map(str, some))}" for name, some in question.only.items())
        sentence += f", or allow more than {'; '.join(allowed)}"
    return sentence


class _Chunk:
    """A block of rows of a search, with the table entries of each row."""

    def __init__(self, question: Question, tables: Tables, part: slice) -> None:
        self.question = question
        column = {name: values[part].astype(float) for name, values in tables.columns.items()}
        self.steps = column["accumulation"][:, None]
        self.virtual = column["virtual_stages"][:, None]
        self.sums = (self.steps * (self.steps > 1))[:, :, None]  # gradient accumulations
        self.micro_batch = column["micro_batch"][:, None]
        late = question.recipe.gradient_life == "backward"
        alone = column["accumulation"] * column["pp"] == 1
        self.gradients_come_late = (late & alone)[:, None]
        self.share = self.micro_batch / column["cp"][:, None]  # of the micro-batch per rank
        self.counts = _by_kind(tables.kinds.of(part))
        self.held = tables.held.of(part)
        self.activations = tables.activations.of(part)
        self.states = tables.states.of(part)
        self.messages = {name: table.of(part) for name, table in tables.messages.items()}

    def memory(self) -> "Array":
        """Bytes of the worst stage, [row, recompute, ZeRO stage]."""
        import numpy

        worst = numpy.zeros(1)
        for kind, counts in enumerate(self.counts):
            states = {name: each[:, None, kind] for name, each in self.states.items()}
            loss, layer = (most[:, :, None] for most in self._fullest(kind))
            passing = numpy.maximum(loss + states["loss_bytes"], layer + states["bytes"])
            if self.gradients_come_late.any():  # else the last layer never exceeds the first
                one_layer = self._largest(counts, "bytes") + self._largest(counts, "temporary")
                passing = passing - self.gradients_come_late[:, :, None] * states["gradients_bytes"]
                passing = numpy.maximum(passing, one_layer[:, :, None] + states["bytes"])
            worst = numpy.maximum(worst, passing)
            if self.question.recipe.update != "fused":
                worst = numpy.maximum(worst, states["update_bytes"])
        return worst + int(self.question.overhead_bytes)

    def _fullest(self, kind: int) -> "tuple[Array, Array]":
        """Peak activations and temporaries of one kind of stage: (at the loss, in a layer)."""
        import numpy

        at_loss = in_layer = numpy.zeros(1)
        for moment in range(self.held["dense"].shape[2]):
            held = {name: each[:, kind, moment, None] for name, each in self.held.items()}
            following = {name: held[f"next_{name}"] for name in ("dense", "experts")}
            activations, freed = self._sum(held, "bytes"), held["freed"]
            loss = activations + freed * self.activations["last_temporary"]
            layer = activations - freed * self.activations["last_head"]
            at_loss = numpy.maximum(at_loss, loss)
            in_layer = numpy.maximum(in_layer, layer + self._largest(following, "temporary"))
        return at_loss, in_layer

    def _largest(self, counts: "dict[str, Array]", leaf: str) -> "Array":
        """The largest value of `leaf` among the kinds of layers in one kind of stage."""
        import numpy

        largest = numpy.zeros(1)
        for name in ("dense", "experts"):
            size = self.activations.get(f"{name}_{leaf}")
            if size is not None:
                largest = numpy.maximum(largest, (counts[name] > 0) * size)
        return largest

    def _sum(self, counts: "dict[str, Array]", leaf: str) -> "Array":
        """Sum of counts · parts over dense layers, expert layers, embedding and head."""
        parts = ((name, self.activations.get(f"{name}_{leaf}")) for name in _PARTS)
        return _added([counts[name] * part for name, part in parts if part is not None])

    def time(self) -> "Array":
        """Seconds of a step on the slowest stage, [row, recompute, ZeRO stage]."""
        import numpy

        work = [self._passes(counts) for counts in self.counts]
        pairs = zip(self.counts, work, strict=True)
        all_passes = _added([counts["stages"] * passes for counts, (_, passes) in pairs])
        slowest = numpy.zeros(1)
        for kind, (left, passes) in enumerate(work):
            waiting = (all_passes - passes) / (self.steps * self.virtual)
            update = self.states["update_s"][:, None, kind]
            sums = self.sums * self.states["sum_s"][:, None, kind]
            total = (passes + waiting)[:, :, None] + self._data(kind, left) + update + sums
            slowest = numpy.maximum(slowest, total)
        return slowest

    def _passes(self, counts: "dict[str, Array]") -> "tuple[Array, Array]":
        """Seconds in a step of (computation that hides no message yet, all recurring work)."""
        question, steps = self.question, self.steps
        rates = question.cluster, question.assumptions
        attention = steps * self._sum(counts, "attention")
        attention = attention / attention_rate(*rates, question.recipe)
        compute = steps * self._sum(counts, "matmul") / layer_rate(*rates) + attention
        bandwidth = question.cluster.accelerator.memory_bytes_per_s
        left = compute + steps * self._sum(counts, "touched") / bandwidth
        total = left
        layers = counts["dense"] + counts["experts"]
        lines: dict[str, list[_Line]] = {
            "cp": [(steps * layers, "cp", "layers", self.micro_batch)],
            "tp": self._tensor(counts),
            "ep": [(steps * counts["experts"], "ep", "experts", self.share)],
            "pp": self._boundary(counts),
        }
        for axis in HIDING_ORDER[:-1]:
            if axis == "ep" and "ep" not in self.messages:
                continue
            known = {name: self._known(lines[axis], name) for name in KNOWN}
            saved = self._saved(axis, known, attention if axis == "cp" else left)
            left, total = left - saved, total + known["s"] - saved
        return left, total

    def _known(self, lines: "list[_Line]", name: str) -> "Array":
        """Quantity `name` of an axis' messages in a step: the sum of count · linear function."""
        parts = [count * self._line(table, f"{part}_{name}", x) for count, table, part, x in lines]
        return _added(parts)

    def _line(self, table: str, name: str, x: "Array") -> "Array":
        """The linear function `name` of a table at x."""
        numbers = self.messages[table]
        return numbers[f"{name}_0"] + numbers[f"{name}_x"] * x

    def _tensor(self, counts: "dict[str, Array]") -> "list[_Line]":
        """Messages of tp: layers of both kinds, embedding and head."""
        kinds = [kind for kind in ("dense", "experts") if f"tp_{kind}" in self.messages]
        ends = f"tp_{kinds[-1]}"  # both tables have the same ends
        parts = [(kind, f"tp_{kind}", "layers") for kind in kinds]
        parts += [("first", ends, "embedding"), ("last", ends, "head")]
        return [(self.steps * counts[held], *line, self.share) for held, *line in parts]

    def _boundary(self, counts: "dict[str, Array]") -> "list[_Line]":
        """Messages of pp: each chunk sends both ways, except at the ends; a tied embedding once."""
        ends = counts["first"] + counts["last"]
        sends = self.steps * (2 * self.virtual - ends)
        return [(sends, "pp", "layers", self.share), ((ends > 0) * 1.0, "pp", "ends", self.share)]

    def _data(self, kind: int, left: "Array") -> "Array":
        """Seconds of exposed dp messages, by ZeRO stage."""
        import numpy

        known = {
            name: (
                self.states[f"once_{name}"][:, kind]
                + self.states[f"each_{name}"][:, kind] * self.steps
            )[:, None, :]
            for name in KNOWN
        }
        each_pass = numpy.array([Row().layout(zero).exchanges_each_pass for zero in ZERO_STAGES])
        window = left[:, :, None] / numpy.where(each_pass, 1, self.steps)[:, None, :]
        shown: Array = known["s"] - self._saved("dp", known, window)
        return shown

    def _saved(self, axis: str, known: "dict[str, Array]", window: "Array") -> "Array":
        """Seconds saved by overlap: `step.stage.Hideable` applied to arrays."""
        question = self.question
        messages = Hideable(known["hideable_s"], known["bytes"], window)
        memory_bytes_per_s = question.cluster.accelerator.memory_bytes_per_s
        saved: Array = messages.saved_s(question.assumptions, axis, memory_bytes_per_s)
        return saved


_PARTS = ("dense", "experts", "first", "last")


def _by_kind(numbers: "dict[str, Array]") -> "list[dict[str, Array]]":
    """Split arrays [row, kind] by name into a dictionary of columns [row, 1] per kind of stage."""
    kinds = next(iter(numbers.values())).shape[1]
    return [{name: each[:, kind, None] for name, each in numbers.items()} for kind in range(kinds)]


def _added(terms: "list[Array]") -> "Array":
    """The sum of at least one array, from left to right."""
    total = terms[0]
    for term in terms[1:]:
        total = total + term
    return total
