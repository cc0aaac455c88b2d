"""Memory and time of all layouts of a search: numpy multiplies by counts, adds and compares.

Arrays have the axes [row, recompute] or [row, recompute, ZeRO stage]; a loop goes over the kinds of
stages. A test proves both results equal to `memory.worst_stage` and `steptime.step_time`.
"""

from dataclasses import dataclass
from typing import Any

from course_lib.theory.planner.fast import Tables
from course_lib.theory.planner.space import ZERO_STAGES, Question, rows
from course_lib.theory.step.stage import layer_rate

CHUNK_ROWS = 4096  # arrays of so many rows stay in a processor's cache


@dataclass(frozen=True)
class Found:
    """All layouts of a question: bytes of the worst stage and seconds of a step.

    `memory_bytes` and `step_s` are [row, recompute, ZeRO stage]; `differs` is [row, ZeRO stage],
    False for ZeRO without ranks to shard over, which is no layout of its own, and for stages that
    the question does not allow.
    """

    rows: list[tuple[int, ...]]
    memory_bytes: Any
    step_s: Any
    differs: Any

    @property
    def count(self) -> int:
        """Layouts with their kinds of recomputation."""
        return int(self.differs.sum()) * self.memory_bytes.shape[1]


def search(question: Question) -> Found:
    """Evaluate every layout. Raises ValueError if no layout can be built at all."""
    import numpy

    found = rows(question)
    if not found:
        raise ValueError(
            f"global_batch {question.global_batch} and sequence {question.sequence} cannot be "
            f"shared out over {question.cluster.world} GPUs: take a global_batch that the number "
            "of GPUs divides"
            + (f", or allow more than only {dict(question.only)}" if question.only else "")
        )
    tables = Tables(question, found)
    size = (len(found), len(question.recipes), len(ZERO_STAGES))
    memory, time = numpy.empty(size), numpy.empty(size)
    for start in range(0, len(found), CHUNK_ROWS):
        part = slice(start, start + CHUNK_ROWS)
        chunk = _Chunk(tables, part)
        memory[part], time[part] = chunk.memory(), chunk.time()
    ranks = tables.columns["dp"] * tables.columns["cp"]
    stages = numpy.array(ZERO_STAGES)
    allowed = numpy.array([question.allows("zero_stage", stage) for stage in ZERO_STAGES])
    differs = numpy.where(ranks[:, None] > 1, allowed, stages == 0)
    return Found(found, memory, time, differs)


class _Chunk:
    """Some rows of a search, with what they look up."""

    def __init__(self, tables: Tables, part: slice) -> None:
        self.question = tables.question
        column = {name: values[part] for name, values in tables.columns.items()}
        self.steps = column["accumulation"][:, None]
        self.virtual = column["virtual_stages"]
        self.stages, self.micro_batch = column["pp"], column["micro_batch"][:, None]
        self.x = self.micro_batch / column["cp"][:, None]
        self.kinds, self.held = tables.kinds.of(part), tables.held.of(part)
        activations = tables.activations.of(part)
        self.parts = {name: activations[..., i] for i, name in enumerate(tables.parts)}
        self.states = tables.states.of(part)
        self.messages = {name: table.of(part) for name, table in tables.messages.items()}

    def memory(self) -> Any:
        """Bytes of the worst stage."""
        import numpy

        worst = 0.0
        for kind in range(self.kinds.shape[1]):
            total = self._sum(self.held[:, kind], "bytes") + self._temporary(kind)
            states = self.states[:, None, kind, :, 0]
            worst = numpy.maximum(worst, total[:, :, None] + states)
        return worst + int(self.question.overhead_bytes)

    def _temporary(self, kind: int) -> Any:
        """The largest temporary of the layers and the head of one kind of stage."""
        import numpy

        has, largest = self.kinds[:, kind] > 0, 0.0
        for place, name in enumerate(("dense", "expert", None, "last")):
            size = self.parts.get(f"{name}_temporary")
            if size is not None:
                largest = numpy.maximum(largest, has[:, place, None] * size)
        return largest

    def _sum(self, counts: Any, leaf: str) -> Any:
        """counts · parts: dense and expert layers, embedding and head; parts that exist."""
        total = 0.0
        for place, name in enumerate(("dense", "expert", "first", "last")):
            part = self.parts.get(f"{name}_{leaf}")
            if part is not None:
                total = total + counts[:, place, None] * part
        return total

    def time(self) -> Any:
        """Seconds of a step: on the stage that ends last, with the passes of the others."""
        import numpy

        kinds = range(self.kinds.shape[1])
        work = [self._passes(kind) for kind in kinds]
        count = self.kinds[:, :, 4]
        everyone = sum(count[:, kind, None] * work[kind][1] for kind in kinds)
        slowest = 0.0
        for kind in kinds:
            compute, passes = work[kind]
            waiting = (everyone - passes) / (self.steps * self.virtual[:, None])
            data = self._data(kind, compute)
            total = (passes + waiting)[:, :, None] + data + self.states[:, None, kind, :, 1]
            slowest = numpy.maximum(slowest, total)
        return slowest

    def _passes(self, kind: int) -> tuple[Any, Any]:
        """Seconds of matmuls, and of all that repeats with every micro-batch, in a step."""
        question, counts, steps = self.question, self.kinds[:, kind], self.steps
        rate = layer_rate(question.cluster, question.assumptions)
        compute = steps * self._sum(counts, "flop") / rate
        scores = steps * self._sum(counts, "scores") / rate
        bandwidth = question.cluster.accelerator.memory_bytes_per_s
        total = compute + steps * self._sum(counts, "touched") / bandwidth
        total = total + self._shown("tp", self._tensor(counts), compute)
        ring = self._line("cp", 1, self.micro_batch)
        layers = counts[:, 0, None] + counts[:, 1, None]
        total = total + self._shown("cp", steps * layers * ring[0], scores)
        if "ep" in self.messages:
            experts = self._line("ep", 1, self.x)[0]
            total = total + self._shown("ep", steps * counts[:, 1, None] * experts, compute)
        return compute, total + self._shown("pp", self._boundary(counts), compute)

    def _line(self, name: str, count: int, x: Any) -> list[Any]:
        """The first `count` straight lines of a table at x."""
        table = self.messages[name]
        return [table[..., 2 * i] + table[..., 2 * i + 1] * x for i in range(count)]

    def _tensor(self, counts: Any) -> Any:
        """Seconds of tp: layers of both kinds, embedding and head."""
        total, ends = 0.0, None
        for place, kind in enumerate(("dense", "expert")):
            if f"tp {kind}" in self.messages:
                layer, *ends = self._line(f"tp {kind}", 3, self.x)
                total = total + counts[:, place, None] * layer
        total = total + counts[:, 2, None] * ends[0] + counts[:, 3, None] * ends[1]
        return self.steps * total

    def _boundary(self, counts: Any) -> Any:
        """Seconds of pp: every chunk sends both ways, but for both ends; a tied embedding once."""
        send, tied = self._line("pp", 2, self.x[:, 0])
        first, last = counts[:, 2], counts[:, 3]
        sends = self.steps[:, 0] * (2 * self.virtual - first - last) * send
        return (sends + (first + last > 0) * tied)[:, None]

    def _data(self, kind: int, compute: Any) -> Any:
        """Seconds of dp that show, by ZeRO stage."""
        import numpy

        once, often = self.states[:, kind, :, 2], self.states[:, kind, :, 3]
        seconds = once + often * self.steps
        assumptions = self.question.assumptions
        each_pass = numpy.array([assumptions.exchanges_each_pass(zero) for zero in ZERO_STAGES])
        behind = compute[:, :, None] / numpy.where(each_pass, 1, self.steps)[:, None, :]
        return self._shown("dp", seconds[:, None, :], behind)

    def _shown(self, axis: str, seconds: Any, window_s: Any) -> Any:
        """`stagetime.exposed` for arrays."""
        import numpy

        overlap = self.question.assumptions.overlap[axis]
        return seconds - numpy.minimum(overlap * seconds, window_s)
