"""Probes: calls in which one parameter differs, and the values that many of them share.

Most probes follow from names and types: see examples.py. A module of the theory keeps the others in
its own test file. PROBES holds for each of these functions a call and, for each parameter, another
value with which the result differs; RECORDS holds for each class of results some results in which
every field differs. test_every_parameter.py looks for both.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, fields, replace
from typing import Any

from course_lib.theory.inputs.hardware import Cluster, Link, accelerator
from course_lib.theory.inputs.job import Job
from course_lib.theory.inputs.layout import ALONE, Layout
from course_lib.theory.inputs.recipe import Recipe
from course_lib.theory.inputs.shape import LatentAttention, TransformerShape
from course_lib.theory.pipelines.bubble import PassTimes
from course_lib.theory.step.assumptions import Assumptions

# What a shape of Llama has otherwise than one of GPT-2.
LLAMA_LIKE: dict[str, Any] = {
    "mlp": "swiglu",
    "norm": "rmsnorm",
    "biases": False,
    "learned_positions": False,
    "tied_embeddings": False,
}
DENSE = TransformerShape(6, 512, 8, 2048, 5000, 1024, kv_heads=4)
MIXTURE = replace(
    DENSE,
    layers=7,
    mlp="swiglu",
    tied_embeddings=False,
    learned_positions=False,
    experts=8,
    top_k=2,
    shared_experts=1,
    expert_ffn=1024,
    dense_layers=2,
)
LATENT = replace(MIXTURE, kv_heads=8, mla=LatentAttention(96, 64, 32, 16, 32))
PLAIN, STANDARD = Recipe(), Recipe(attention="standard", dropout=True)
FULL, OFFLOADED = Recipe(recompute="full"), Recipe(offload="optimizer")
SPREAD = Layout(dp=2, tp=2, pp=2, cp=2, accumulation=4)
ZERO_3 = Layout(dp=4, zero_stage=3)
TWO_STAGES = Layout(pp=2, accumulation=4)
H100 = accelerator("H100-SXM")
SLOW_LINK = Link("slow", 1e9, 1e-3)
CLUSTER = Cluster(H100, nodes=4)
SLOW = Cluster(accelerator("A100-SXM-80GB"), nodes=4)
GUESS = Assumptions(mask="full")
TIMES = PassTimes(1.0, 3.0)

JOB = Job(MIXTURE, STANDARD, SPREAD, CLUSTER, 512)


def other_jobs(job: Job) -> dict[str, list[Job]]:
    """By what is different: jobs that may give another result than `job`."""
    shapes = replace(MIXTURE, hidden=1024, vocab=100), LATENT
    recipes = PLAIN, FULL, Recipe(optimizer="sgd", fused_norms=False)
    layouts = TWO_STAGES, ZERO_3, ALONE
    return {
        "shape": [replace(job, shape=shape) for shape in shapes],
        "recipe": [replace(job, recipe=recipe) for recipe in recipes],
        "layout": [replace(job, layout=layout) for layout in layouts],
        "micro_batch": [replace(job, layout=replace(job.layout, micro_batch=3))],
        "cluster": [replace(job, cluster=SLOW)],
        "sequence": [replace(job, sequence=256)],
    }


@dataclass(frozen=True)
class Given:
    """Another value of a parameter, together with other arguments; `before` is the first value."""

    value: Any
    others: dict[str, Any] = field(default_factory=dict)
    before: Any = None


@dataclass(frozen=True)
class Probe:
    """A function, the arguments of a call, and for parameters another value.

    Where `changes` names none, `examples.completed` looks for one. A parameter `job` needs no other
    value: the jobs of `other_jobs` serve all functions. `see` is what of the result is compared.
    `silent`: parameters, or parts of the job, that change nothing, which is checked as well.
    `refuses`: a ValueError counts as a result. `signed`: a difference or an estimate, which may be
    below 0.
    """

    call: Callable[..., Any]
    base: dict[str, Any]
    changes: dict[str, Any] = field(default_factory=dict)
    see: Callable[[Any], Any] | None = None
    silent: tuple[str, ...] = ()
    refuses: bool = False
    signed: bool = False

    def outcome(self, arguments: dict[str, Any]) -> Any:
        """What the call gives, or the sentence with which it refuses."""
        try:
            result = self.call(**arguments)
            return self.see(result) if self.see else result
        except ValueError as error:
            if not self.refuses:
                raise
            return str(error)

    def pairs(self) -> dict[str, list[tuple[dict[str, Any], dict[str, Any]]]]:
        """By parameter, or by part of the job: arguments of calls that differ in it alone."""
        found = {}
        if "job" in self.base:
            jobs = other_jobs(self.base["job"]).items()
            found = {
                name: [(self.base, self.base | {"job": one}) for one in its] for name, its in jobs
            }
        for name, change in self.changes.items():
            change = change if isinstance(change, Given) else Given(change)
            before = self.base | change.others
            if change.before is not None:
                before |= {name: change.before}
            found[name] = [(before, before | {name: change.value})]
        return found

    def wrong(self) -> list[str]:
        """Parameters, or parts of the job, that change nothing, or something though `silent`."""
        pairs = self.pairs()
        differs = {
            name: any(self.outcome(a) != self.outcome(b) for a, b in its)
            for name, its in pairs.items()
        }
        wrong = [name for name, changed in differs.items() if changed == (name in self.silent)]
        return wrong + [name for name in self.silent if name not in pairs]

    def parameters(self) -> set[str]:
        """The parameters that the probe changes."""
        return set(self.changes) | ({"job"} & set(self.base))

    def numbers(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Parameters that are numbers, with the other arguments of their change."""
        for name, change in self.changes.items():
            change = change if isinstance(change, Given) else Given(change)
            if isinstance(change.value, int | float) and not isinstance(change.value, bool):
                yield name, self.base | change.others


def check(
    call: Callable[..., None], base: dict[str, Any], changes: dict[str, Any] | None = None
) -> Probe:
    """A probe of a function that only raises."""
    return Probe(call, base, changes or {}, refuses=True)


def by_name(*probes: Probe) -> dict[str, Probe]:
    """Probes by the names of what they call: "cost", "Layout", "Layout.check"."""
    found = {probe.call.__qualname__: probe for probe in probes}
    assert len(found) == len(probes), "two probes of one function"
    return found


def values(record: Any) -> dict[str, Any]:
    """The fields of a record by name, as arguments of its class."""
    return {one.name: getattr(record, one.name) for one in fields(record)}
