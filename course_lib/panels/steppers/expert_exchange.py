"""The stepper of chapter 12: tokens travel to experts and back."""

from course_lib import figures
from course_lib.panels.controls import listed, powers_of_two
from course_lib.panels.panel import View
from course_lib.panels.stepper import Stepper, Story
from course_lib.theory.network.expert_steps import ExpertExchange, skewed_exchange

_TOKENS, _EXPERTS, _TOP_K = 64, 8, 2
_SKEWS = {f"{skew:g}": skew for skew in (0.0, 0.25, 0.5, 1.0, 2.0)}
_FACTORS = {"1": 1.0, "1.25": 1.25, "1.5": 1.5, "2": 2.0, "no limit": 0.0}


def expert_exchange(ranks: int = 4, skew: float = 0.5, capacity_factor: float = 1.25) -> Stepper:
    """The story of `skewed_exchange`: 64 tokens on each rank, 8 experts, top-2.

    Capacity factor 0 means no limit. Raises ValueError for starting values that are not offered.
    """
    controls = {
        "ranks": powers_of_two("ranks", ranks, 2, 8),
        "skew": listed("router's skew", skew, _SKEWS),
        "capacity_factor": listed("capacity factor", capacity_factor, _FACTORS),
    }
    return Stepper(controls, _story)


def _story(ranks: int, skew: float, capacity_factor: float) -> Story:
    result = skewed_exchange(
        _TOKENS, _EXPERTS, _TOP_K, ranks, skew=skew, factor=capacity_factor or None
    )
    return Story(len(result.stages), lambda step: _view(result, step))


def _view(result: ExpertExchange, step: int) -> View:
    received, sent = result.received, [sum(row) for row in result.sent]
    mean = sum(received) / result.ranks
    rows = (
        ("rows that the ranks send", ", ".join(map(str, sent))),
        ("rows that their experts get", ", ".join(map(str, received))),
        ("busiest rank", f"{max(received) / mean:.2f} × the mean; {result.dropped} dropped"),
    )
    stage = result.stages[step]
    return View(
        (result, stage), rows, lambda: figures.experts_step(result, step), _caption(result, step)
    )


def _caption(result: ExpertExchange, step: int) -> str:
    stage, ranks = result.stages[step], result.ranks
    if stage.name == "chosen":
        return f"Each of {ranks} ranks has {_TOKENS} tokens, and each token has chosen 2 experts."
    if stage.name == "accepted":
        lost = f"{result.dropped} choices exceed capacity and are dropped, last ranks first"
        return f"The ranks share their counts: {lost if result.dropped else 'nothing is dropped'}."
    if stage.name in ("dispatch", "combine"):
        pairs = result.partners(stage.turn)
        if stage.name == "combine":  # those who send have the experts
            pairs = tuple((to, sender) for sender, to in pairs)
        partner = dict(pairs)[0]
        rows = result.sent[0][partner]
        if stage.name == "dispatch":
            way = (
                f"rank 0 sends {rows} rows to rank {partner}, the others likewise"
                if stage.turn
                else _home(rows)
            )
            return f"Dispatch: {way}."
        way = f"rank {partner} gives rank 0 its {rows} results back" if stage.turn else _home(rows)
        return f"Combine: {way}."
    if stage.name == "compute":
        received = result.received
        busiest = received.index(max(received))
        wait = f"all wait for rank {busiest}" if max(received) > min(received) else "nobody waits"
        return f"Each rank computes its experts; {wait}."
    return "Each token adds up the results that came back, with the router's weights."


def _home(rows: int) -> str:
    return f"{rows} rows of rank 0 belong to its own experts and stay"
