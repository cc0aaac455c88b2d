"""Panels of chapter 12, in addition to the library's."""

from course_lib.chapters.ch12_experts_and_long_sequences import figures
from course_lib.figures.paper.drawing import counted
from course_lib.panels.controls import listed, powers_of_two, whole
from course_lib.panels.panel import View, panel
from course_lib.theory.inputs.units import format_bytes, format_number
from course_lib.theory.network.experts import expert_load

_HIDDEN = 4096  # numbers in a token's row in the all-to-all, in bf16
_SKEWS = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.25, 1.5, 2.0)
_FACTORS = {f"{factor:g}": factor for factor in (0.5, 0.75, 1.0, 1.25, 1.5, 2.0, 3.0, 4.0)}
_FACTORS["no limit"] = 0.0


@panel
def experts(
    skew: float = listed("router's skew", 0.5, {f"{value:g}": value for value in _SKEWS}),
    experts: int = powers_of_two("experts", 8, 2, 64),
    top_k: int = whole("top-k", 2, 1, 8),
    capacity_factor: float = listed("capacity factor", 1.25, _FACTORS),
    ep: int = powers_of_two("expert parallel", 4, 1, 64),
    tokens: int = powers_of_two("tokens", 8192, 256, 131072),
) -> View:
    """Controls for `expert_load`; its `ExpertLoad` is the panel's result.

    `tokens` counts those of all ranks together; capacity factor 0 means no limit. Raises ValueError
    for starting values that are not offered or do not fit together.
    """
    load = expert_load(
        tokens,
        experts,
        top_k,
        capacity_factor=capacity_factor or None,
        ranks=ep,
        row_bytes=2 * _HIDDEN,
        skew=skew,
    )
    rows = (
        (
            "each expert, mean",
            f"{format_number(load.mean, 4)} choices; it accepts up to {load.capacity:,}",
        ),
        ("busiest expert", f"{max(load.load):,} = {load.imbalance:.2f} × the mean"),
        ("dropped", f"{load.dropped:,} of {load.choices:,} = {load.dropped_fraction:.1%}"),
        ("busiest rank", f"{load.rank_imbalance:.2f} × the mean of {load.ranks}; others wait"),
        (
            f"one all-to-all, hidden {_HIDDEN}, bf16",
            f"{format_bytes(load.dispatch_bytes)} from each rank, of which "
            f"{format_bytes(load.travelling_bytes)} leave it; the busiest receives "
            f"{format_bytes(load.received_bytes)}",
        ),
    )
    title = f"{tokens:,} tokens, each to {top_k} of {counted(experts, 'expert')}"
    return View(load, rows, lambda: figures.expert_bars(load, title))
