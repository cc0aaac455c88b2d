"""Probes that follow from names and types: most functions of the theory need none of their own.

A parameter's name, or else its type, says which values are tried. The probe of a function is the
first call that ends well and in which another value of each parameter changes the result.
"""

import contextlib
import inspect
import random
import types
import typing
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from probes import (
    ALONE,
    CLUSTER,
    DENSE,
    FULL,
    GUESS,
    H100,
    JOB,
    MIXTURE,
    OFFLOADED,
    PLAIN,
    SLOW,
    SLOW_LINK,
    SPREAD,
    STANDARD,
    TIMES,
    TWO_STAGES,
    ZERO_3,
    Probe,
)

from course_lib.chapters.ch17_capstone.streams import Task
from course_lib.theory.compute.flops import training_flops
from course_lib.theory.inputs.hardware import Link, accelerator
from course_lib.theory.inputs.job import Job
from course_lib.theory.inputs.recipe import Recipe
from course_lib.theory.memory.states import local_parameters
from course_lib.theory.pipelines.bubble import PassTimes
from course_lib.theory.pipelines.schedules import schedule
from course_lib.theory.step.assumptions import Assumptions

HALF_ACCUMULATED = replace(SPREAD, accumulation=2)
NAMES: dict[str, tuple[Any, ...]] = {
    # words
    "accumulate": ("fp32", "fp64"),
    "algorithm": ("ring", "tree", "double-tree"),
    "attention": ("flash", "standard"),
    "axis": ("dp", "tp"),
    "dtype": ("fp32", "fp16", "bf16"),
    "kernel": ("flash", "new"),
    "kind": ("mlp", "attention"),
    "mask": ("causal", "full"),
    "name": ("1f1b", "gpipe", "interleaved", "dualpipe", "H100-SXM", "RTX4090"),
    "operation": ("all-reduce", "broadcast", "all-gather"),
    "order": (("dp", "pp", "cp", "tp"),),
    "recompute": ("none", "full"),
    "rule": ("linear", "sqrt"),
    "scheme": ("pipedream", "flush"),
    "text": ("1B", "2B"),
    "tree": ("double-tree", "tree"),
    "unit": ("GB", "GiB"),
    # numbers
    "chunk": (0, 1),
    "compute_share": (0.5, 1.0),
    "count": (1, 2, 3),
    "efficiency": (0.5, 0.8),
    "global_batch": (16, 8),
    "group": (8, 4),
    "layer": (0, 5, 1),
    "micro_batches": (8, 16, 4),
    "rank": (1, 2, 0),
    "sequence": (512, 256),
    "size_bytes": (1e6, 2e6, 1e9),
    "slower": (0.1, 0.2),
    "stage": (0, 1, 2),
    "stages": (4, 8, 2),
    "tokens": (1024, 2048),
    "virtual_stages": (1, 2, 3),
    "width": (64, 128),
    "row_bytes": (4, 8),
    # rows of numbers
    "chunks": ((0,), (1,)),
    "counts": (((1, 2), (3, 4)), ((5, 2), (3, 4)), ((1, 2, 3, 4), (1, 1, 1, 1))),
    "load": ((3, 1), (2, 2)),
    "probabilities": ((0.7, 0.3), (0.5, 0.6)),
    "seconds": ([1e-3, 2e-3], [1e-3, 3e-3]),
    "sizes_bytes": ([1e3, 1e6], [1e3, 2e6]),
    # things
    "accelerator": (H100, accelerator("RTX4090")),
    "assumptions": (Assumptions(), GUESS),
    "cluster": (CLUSTER, SLOW),
    "flops": tuple(training_flops(DENSE, count, 512) for count in (1, 2)),
    "job": (
        JOB,
        replace(JOB, recipe=FULL),
        replace(JOB, recipe=OFFLOADED),
        replace(JOB, layout=ZERO_3),
        Job(DENSE, STANDARD, SPREAD, CLUSTER),
        Job(MIXTURE, Recipe(loss="eager", gradients="fp32"), HALF_ACCUMULATED, CLUSTER, 512),
    ),
    "layout": (ZERO_3, ALONE, TWO_STAGES, SPREAD),
    "link": (SLOW_LINK, Link("fast", 1e10, 1e-6)),
    "local": tuple(local_parameters(MIXTURE, layout) for layout in (SPREAD, ZERO_3, ALONE)),
    "plan": (schedule("zb1p", 4, 8), schedule("1f1b", 4, 4)),
    "recipe": (
        PLAIN,
        Recipe(gradients="fp32"),
        Recipe(optimizer="sgd"),
        STANDARD,
        Recipe(fused_norms=False),
    ),
    "shape": (DENSE, MIXTURE, replace(DENSE, layers=7)),
    "tasks": ([Task("a", "s", 1)], [Task("a", "s", 2)]),
    "times": (PassTimes(), TIMES),
}
TYPES: dict[Any, tuple[Any, ...]] = {
    bool: (False, True),
    int: (8, 4, 16, 2, 1, 0, 3),
    float: (1.0, 2.0, 1e6, 0.5),
}
BASES = 200  # so many are tried
REFUSED = object()
# Parts of a job that change nothing; of one whose memory is asked for, never the cluster.
SILENT = {
    "gathered_tokens": ("shape", "recipe"),
    "gradients_come_late": ("shape", "micro_batch", "sequence"),
    "held_at_peak": ("shape", "recipe", "micro_batch", "sequence"),
    "host_bytes": ("micro_batch", "sequence"),
    "layer_gradients_bytes": ("recipe",),
    "logit_count": ("recipe",),
    "loss_copies": ("shape", "micro_batch", "sequence"),
    "accumulation_seconds": ("shape", "micro_batch", "sequence"),
    "update_seconds": ("shape", "micro_batch", "sequence"),
}
NO_CLUSTER = ("stage_work", "layer_work", "head_work", "memory_timeline", "segment_bill")


def values_of(parameter: inspect.Parameter) -> list[Any]:
    """What is tried for a parameter besides its default."""
    kinds, words = kinds_of(parameter.annotation)
    values = list(next((TYPES[it] for it in kinds if it in TYPES), ()))
    named = NAMES.get(parameter.name, ()) or words
    # "seconds" are a number here, and a list of measured ones there.
    if named and (not values or isinstance(named[0], int | float)):
        values = list(named)
    if type(parameter.default) in (int, float) and not named:
        values.append(2 * parameter.default)
    return [it for it in values if parameter.default is parameter.empty or it != parameter.default]


def kinds_of(annotation: Any) -> tuple[list[Any], tuple[str, ...]]:
    """The classes that an annotation names, and the words that the value may be."""
    if isinstance(annotation, types.UnionType) or typing.get_origin(annotation) is typing.Union:
        parts = [kinds_of(part) for part in typing.get_args(annotation)]
        return [kind for kinds, _ in parts for kind in kinds], sum((w for _, w in parts), ())
    if typing.get_origin(annotation) is not typing.Annotated:
        return [annotation], ()
    kind, rule = typing.get_args(annotation)
    return kinds_of(kind)[0], () if callable(rule) else tuple(rule)


def seen(result: Any) -> Any:
    """What a record computes from its fields: its properties, or the fields where it has none."""
    kinds = vars(type(result)).items()
    names = [name for name, it in kinds if isinstance(it, property) or hasattr(it, "attrname")]
    return [getattr(result, name) for name in names] if names else result


def derived(call: Callable[..., Any]) -> Probe | None:
    """A probe in which each parameter matters, or None where the tables give none."""
    parameters = list(inspect.signature(call).parameters.values())
    tried = {it.name: values_of(it) for it in parameters}
    if not all(tried.values()):
        return None
    needed = [it.name for it in parameters if it.default is it.empty]
    see = seen if inspect.isclass(call) else None
    silent = SILENT.get(call.__name__, ()) if "job" in tried else ()
    if "job" in tried and (".memory." in call.__module__ or call.__name__ in NO_CLUSTER):
        silent += ("cluster",)
    pick = random.Random(0)
    first = {name: tried[name][0] for name in needed}
    others = ({name: pick.choice(tried[name]) for name in needed} for _ in range(BASES))
    for base in (first, *others):
        changes = changes_of(Probe(call, base, {}, see), tried)
        probe = Probe(call, base, changes or {}, see, silent)
        with contextlib.suppress(ValueError):  # of another job
            if changes is not None and probe.parameters() == set(tried) and not probe.wrong():
                return probe
    return None


def completed(probe: Probe) -> Probe:
    """The probe with another value of each parameter for which it names none, if one is found."""
    tried = {}
    for parameter in inspect.signature(probe.call).parameters.values():
        if parameter.name not in probe.parameters():
            value = probe.base.get(parameter.name, parameter.default)
            is_number = isinstance(value, int | float)
            others = (
                it for it in values_of(parameter) if not is_number or isinstance(it, int | float)
            )
            tried[parameter.name] = [*variants(value), *others]
    return replace(probe, changes=probe.changes | (changes_of(probe, tried) or {}))


def variants(value: Any) -> list[Any]:
    """What is like a value and not equal to it."""
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, int):
        return [2 * value, value + 1, value - 1]
    if isinstance(value, float):
        return [2 * value, value / 2]
    if isinstance(value, list | tuple) and value:
        return [value[:-1], type(value)([*value, value[-1]])]
    others = {id(one): one for values in NAMES.values() for one in values}
    return [one for one in others.values() if type(one) is type(value) and one != value]


def changes_of(probe: Probe, tried: dict[str, list[Any]]) -> dict[str, Any] | None:
    """For each parameter but `job` the first value that changes the result, if there is one."""
    changes: dict[str, Any] = {}
    if (usual := result_of(probe, {})) is REFUSED:
        return None
    for name in tried.keys() - {"job"}:
        results = ((value, result_of(probe, {name: value})) for value in tried[name])
        found = [value for value, result in results if result not in (usual, REFUSED)]
        changes |= {name: found[0]} if found else {}
    return changes


def result_of(probe: Probe, changed: dict[str, Any]) -> Any:
    """What the call gives, or REFUSED; a TypeError that is no refusal is a fault."""
    try:
        return probe.outcome(probe.base | changed)
    except (ValueError, TypeError) as error:
        if isinstance(error, TypeError) and " must be " not in str(error):
            raise
        return REFUSED
