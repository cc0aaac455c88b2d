"""The search space: every layout of a model and a global batch on a cluster, as integer rows."""

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
# More than any cluster or data set has; it keeps the integers of a search within 64 bits.
MOST_GPUS, MOST_SEQUENCES, MOST_TOKENS = 2 * 10**6, 10**9, 10**11
# DeepSeek-V3 on 2,048 GPUs has 375,000: such a search takes seconds and 400 MB.
MOST_ROWS, MOST_PARTS = 400_000, 200_000


# Left free, by convention: a GPU needs more memory than its tensors and `overhead_bytes`. torch's
# allocator loses between 1 and 23 % if there is room (memory.meter) and releases what it can before
# it fails; the fullest published run in the tests used 76 of 79.15 GiB.
MARGIN = 0.05


@dataclass(frozen=True)
class Question:
    """The input of a plan: one step of `global_batch` sequences on all GPUs of `cluster`.

    `margin`: fraction of a GPU's memory that stays free. `only`: allowed values, {"cp": (1,)}, for
    fields of Row, "zero_stage" and "recompute"; names that are left out are unrestricted.
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
        """A Job of the question with this layout; `recipe` and `shape` None: the question's."""
        return Job(shape or self.shape, recipe or self.recipe, layout, self.cluster, self.sequence)

    @cached_property
    def reached(self) -> Cluster:
        """The cluster with the link bandwidth that collectives reach."""
        return self.assumptions.reached(self.cluster)

    @property
    def capacity_bytes(self) -> int:
        """Memory available to a layout: a GPU's memory · (1 - margin)."""
        return int(self.cluster.accelerator.memory_bytes * (1 - self.margin))

    def allows(self, name: str, value: int | str) -> bool:
        """Whether `only` allows `value` for `name`."""
        return name not in self.only or value in self.only[name]

    def allowed(self, name: str, values: Iterable[int]) -> list[int]:
        """The entries of `values` that `only` allows for `name`."""
        return [value for value in values if self.allows(name, value)]

    @cached_property  # used by every line of a table
    def recipes(self) -> tuple[Recipe, ...]:
        """The recipe with each allowed kind of recomputation; unchanged if it names one.

        Flash attention has no "selective", which recomputes scores that flash never stores.
        """
        if self.recipe.recompute != "none":
            return (self.recipe,)
        flash = self.recipe.attention == "flash"
        kinds = ("none", "full") if flash else ("none", "selective", "full")
        allowed = [kind for kind in kinds if self.allows("recompute", kind)]
        return tuple(replace(self.recipe, recompute=kind) for kind in allowed)


class Row(NamedTuple):
    """A layout without its ZeRO stage. `virtual_stages` above 1 means interleaved 1F1B."""

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
        """(tp, pp, ep): the degrees that split the model."""
        return self.tp, self.pp, self.ep

    def layout(self, zero_stage: int = 0) -> Layout:
        """The validated Layout, with sequence parallelism if tp > 1."""
        return _layout(self, zero_stage)


@lru_cache(maxsize=4096)  # a search, and the next one, use the same rows repeatedly
def _layout(row: Row, zero_stage: int) -> Layout:
    return Layout(
        **row._asdict(),
        zero_stage=zero_stage,
        sequence_parallel=row.tp > 1,
        schedule="interleaved" if row.virtual_stages > 1 else "1f1b",
    )


@cache
def divisors(number: int) -> tuple[int, ...]:
    """All divisors, sorted; built from prime factors, which are small for most numbers here."""
    result, rest, factor = [1], number, 2
    while factor * factor <= rest:
        powers = [1]
        while rest % factor == 0:
            rest //= factor
            powers.append(powers[-1] * factor)
        result = [divisor * power for divisor in result for power in powers]
        factor += 1
    if rest > 1:
        result += [divisor * rest for divisor in result]
    return tuple(sorted(result))


def tensor_degrees(question: Question) -> list[int]:
    """tp degrees that stay within a node and divide the model's heads and widths."""
    degrees = divisors(question.cluster.gpus_per_node)
    return [tp for tp in degrees if _accepts(question.shape, tp)]


def _accepts(shape: TransformerShape, tp: int) -> bool:
    try:
        Layout(tp=tp).check(shape)
    except ValueError:
        return False
    return True


def rows(question: Question) -> list[Row]:
    """All layouts with dp·tp·pp·cp = world. Raises ValueError if there are too many."""
    found = list(islice(_rows(question), MOST_ROWS + 1))
    # Layers limit the virtual stages; every number of virtual stages is a separate pipeline.
    chunks = sum(pp * virtual for pp, virtual in {(row.pp, row.virtual_stages) for row in found})
    if len(found) > MOST_ROWS or chunks > MOST_PARTS:
        raise ValueError(
            f"layouts are more than {MOST_ROWS:,}, or their chunks more than {MOST_PARTS:,}: ask "
            'for fewer, such as only={"virtual_stages": (1,), "cp": (1,)}, or take another '
            "global_batch"
        )
    return found


def _rows(question: Question) -> Iterator[Row]:
    """Generate the rows, pruning choices that `only` forbids as early as possible."""
    world = question.cluster.world
    for tp in question.allowed("tp", tensor_degrees(question)):
        for pp in question.allowed("pp", divisors(world // tp)):
            if pp <= min(question.shape.layers, MOST_STAGES):
                yield from _with_batches(question, tp, pp, world // tp // pp)


def _with_batches(question: Question, tp: int, pp: int, ranks: int) -> Iterator[Row]:
    """Rows for all cp · dp = `ranks`, micro-batches, virtual stages and expert degrees."""
    degrees = question.allowed("ep", divisors(question.shape.experts or 1))
    experts = [ep for ep in degrees if ranks % ep == 0]
    most_chunks = question.shape.layers // pp
    for cp in question.allowed("cp", divisors(ranks)):
        dp = ranks // cp
        # Sequence parallelism splits the slices of context parallelism once more.
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
