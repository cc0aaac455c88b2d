"""Every layout of a cluster that a model and a global batch allow, as rows of whole numbers."""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache, cached_property, lru_cache, partial
from itertools import islice
from typing import Annotated, NamedTuple

from course_lib.checked import NotNegative, check_public
from course_lib.theory.inputs import Cluster, Job, Layout, Recipe, TransformerShape
from course_lib.theory.inputs.schedule_rules import MOST_STAGES
from course_lib.theory.memory.peak import OVERHEAD_BYTES
from course_lib.theory.step.assumptions import Assumptions
from course_lib.validation import choice, number, whole

ZERO_STAGES = (0, 1, 2, 3)
# More than anybody has; the whole numbers of a search then fit 64 bits.
MOST_GPUS, MOST_SEQUENCES, MOST_TOKENS = 2 * 10**6, 10**9, 10**11
# DeepSeek-V3 on 2,048 GPUs has 375,000: a search of so many takes seconds and 400 MB.
MOST_ROWS, MOST_PARTS = 400_000, 200_000


# Left free, by convention: what tensors need and `overhead_bytes` are not all that a GPU shows.
# torch's allocator loses between 1 and 23 % where there is room (memory.meter) and gives back what
# it can before it fails; the fullest published run that is in the tests took 76 of 79.15 GiB.
MARGIN = 0.05


@dataclass(frozen=True)
class Question:
    """What a plan answers: one step of `global_batch` sequences on all GPUs of `cluster`.

    `margin`: the part of a GPU's memory that stays free. `only`: values that a layout may have,
    {"cp": (1,)}, by the names of Row's fields, "zero_stage" and "recompute"; what is not named is
    free.
    Raises ValueError for counts below 1, a sequence longer than the learned positions, unknown
    names in `only` and names without a value.
    """

    shape: TransformerShape
    recipe: Recipe
    cluster: Cluster
    global_batch: Annotated[int, partial(whole, most=MOST_SEQUENCES)]
    sequence: int
    assumptions: Assumptions
    overhead_bytes: NotNegative = OVERHEAD_BYTES
    margin: Annotated[float, partial(number, least=0, most=0.9)] = MARGIN
    only: Mapping[str, Collection[int | str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.shape.check_sequence(self.sequence)
        whole("global_batch*sequence", self.global_batch * self.sequence, most=MOST_TOKENS)
        whole("nodes*gpus_per_node", self.cluster.world, most=MOST_GPUS)
        if self.recipe.recompute_layers is not None:
            raise ValueError(
                f"recompute_layers {self.recipe.recompute_layers} is not searched, its chunks have "
                "layers of two sorts: leave it out, and refine the plan that you choose with "
                "worst_stage and step_time"
            )
        for name, values in self.only.items():
            choice("only", name, (*Row._fields, "zero_stage", "recompute"))
            if not values:
                raise ValueError(f"only {name!r} allows no value: name one, or leave it out")

    def job(
        self, layout: Layout, recipe: Recipe | None = None, shape: TransformerShape | None = None
    ) -> Job:
        """One step of the question with this layout; `recipe` and `shape` None: the question's."""
        return Job(shape or self.shape, recipe or self.recipe, layout, self.cluster, self.sequence)

    @cached_property
    def reached(self) -> Cluster:
        """The cluster as fast as collectives are on it."""
        return self.assumptions.reached(self.cluster)

    @property
    def capacity_bytes(self) -> int:
        """What a layout may need: a GPU's memory · (1 - margin)."""
        return int(self.cluster.accelerator.memory_bytes * (1 - self.margin))

    def allows(self, name: str, value: int | str) -> bool:
        """Whether `only` lets `name` have this value."""
        return name not in self.only or value in self.only[name]

    def allowed(self, name: str, values: Iterable[int]) -> list[int]:
        """Those of `values` that `only` lets `name` have."""
        return [value for value in values if self.allows(name, value)]

    @cached_property  # every line of a table asks for them
    def recipes(self) -> tuple[Recipe, ...]:
        """The recipe with every allowed recomputation, or as it is when it asks for one.

        Flash attention has no "selective": it never keeps the scores that this recomputes.
        """
        if self.recipe.recompute != "none":
            return (self.recipe,)
        flash = self.recipe.attention == "flash"
        kinds = ("none", "full") if flash else ("none", "selective", "full")
        allowed = [kind for kind in kinds if self.allows("recompute", kind)]
        return tuple(replace(self.recipe, recompute=kind) for kind in allowed)


class Row(NamedTuple):
    """One layout but for its ZeRO stage. `virtual_stages` above 1 means interleaved 1F1B."""

    tp: int = 1
    pp: int = 1
    cp: int = 1
    ep: int = 1
    dp: int = 1
    micro_batch: int = 1
    accumulation: int = 1
    virtual_stages: int = 1

    @property
    def cut(self) -> tuple[int, int, int]:
        """tp, pp and ep, which cut the model."""
        return self.tp, self.pp, self.ep

    def layout(self, zero_stage: int = 0) -> Layout:
        """The validated Layout; sequence parallelism comes with tensor parallelism."""
        return _layout(self, zero_stage)


@lru_cache(maxsize=4096)  # a search, and the next one, ask for the same rows again and again
def _layout(row: Row, zero_stage: int) -> Layout:
    return Layout(
        **row._asdict(),
        zero_stage=zero_stage,
        sequence_parallel=row.tp > 1,
        schedule="interleaved" if row.virtual_stages > 1 else "1f1b",
    )


@cache
def divisors(number: int) -> tuple[int, ...]:
    """All divisors, in order; by prime factors, since most numbers here have small ones only."""
    found, rest, factor = [1], number, 2
    while factor * factor <= rest:
        powers = [1]
        while rest % factor == 0:
            rest //= factor
            powers.append(powers[-1] * factor)
        found = [one * power for one in found for power in powers]
        factor += 1
    if rest > 1:
        found += [one * rest for one in found]
    return tuple(sorted(found))


def tensor_degrees(question: Question) -> list[int]:
    """Degrees that stay within a node and divide the model's heads and widths."""
    degrees = divisors(question.cluster.gpus_per_node)
    return [tp for tp in degrees if _accepts(question.shape, tp)]


def _accepts(shape: TransformerShape, tp: int) -> bool:
    try:
        Layout(tp=tp).check(shape)
    except ValueError:
        return False
    return True


def rows(question: Question) -> list[Row]:
    """All layouts with dp·tp·pp·cp = world. Raises ValueError for too many of them."""
    found = list(islice(_rows(question), MOST_ROWS + 1))
    # Virtual stages are as many as layers allow, and each number of them is another pipeline.
    chunks = sum(pp * virtual for pp, virtual in {(row.pp, row.virtual_stages) for row in found})
    if len(found) > MOST_ROWS or chunks > MOST_PARTS:
        raise ValueError(
            f"layouts are more than {MOST_ROWS:,}, or their chunks more than {MOST_PARTS:,}: ask "
            'for fewer, such as only={"virtual_stages": (1,), "cp": (1,)}, or take another '
            "global_batch"
        )
    return found


def _rows(question: Question) -> Iterator[Row]:
    """One after the other; every choice that `only` forbids is left out as soon as it is made."""
    world = question.cluster.world
    for tp in question.allowed("tp", tensor_degrees(question)):
        for pp in question.allowed("pp", divisors(world // tp)):
            if pp <= min(question.shape.layers, MOST_STAGES):
                yield from _with_batches(question, tp, pp, world // tp // pp)


def _with_batches(question: Question, tp: int, pp: int, ranks: int) -> Iterator[Row]:
    """cp and dp that share `ranks`, and how each replica's sequences are cut."""
    degrees = question.allowed("ep", divisors(question.shape.experts or 1))
    experts = [ep for ep in degrees if ranks % ep == 0]
    most_chunks = question.shape.layers // pp
    for cp in question.allowed("cp", divisors(ranks)):
        dp = ranks // cp
        # Sequence parallelism cuts what context parallelism leaves of the sequence once more.
        if question.sequence % (cp * tp) or question.global_batch % dp:
            continue
        if not question.allows("dp", dp):
            continue
        for micro_batch in question.allowed("micro_batch", divisors(question.global_batch // dp)):
            steps = question.global_batch // dp // micro_batch
            if not question.allows("accumulation", steps):
                continue
            interleaved = pp > 1 and steps % pp == 0
            most = most_chunks if interleaved else 1
            chunks = question.allowed("virtual_stages", range(1, most + 1))
            for ep in experts:
                yield from (Row(tp, pp, cp, ep, dp, micro_batch, steps, v) for v in chunks)


check_public(globals())
