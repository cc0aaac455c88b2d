"""The stepper of chapter 10: a pair of cut matrices, forward and backward."""

from course_lib import figures
from course_lib.panels.controls import choice, flag, listed
from course_lib.panels.panel import View
from course_lib.panels.stepper import Stepper, Story
from course_lib.theory.inputs.units import format_bytes
from course_lib.theory.network.pair_steps import ATTENTION, MLP, PairStep, PairSteps, pair_steps

_HIDDEN, _TOKENS = 8192, 4096  # LLaMA-2 70B, one sequence, in bf16
_KINDS = {"MLP": MLP, "attention": ATTENTION}


def cut_pair(ranks: int = 2, kind: str = MLP, sequence_parallel: bool = False) -> Stepper:
    """X, A, B and Z on 2 or 4 ranks. Raises ValueError for other starting values."""
    controls = {
        "kind": choice("pair", kind, _KINDS),
        "ranks": listed("ranks", ranks, {"2": 2, "4": 4}),
        "sequence_parallel": flag("sequence parallel", sequence_parallel),
    }
    return Stepper(controls, _story)


def _story(kind: str, ranks: int, sequence_parallel: bool) -> Story:
    result = pair_steps(kind, _HIDDEN, _TOKENS, ranks, sequence_parallel=sequence_parallel)
    return Story(len(result.steps), lambda step: _view(result, step))


def _view(result: PairSteps, step: int) -> View:
    now = result.steps[step]
    rows, columns = now.shape
    so_far = sum(one.sent_bytes for one in result.steps[: step + 1])
    size = format_bytes(rows * columns * result.element_bytes)
    table = (
        ("on each rank", f"{rows:,} × {columns:,} numbers, {size}"),
        ("sent by a rank so far", f"{format_bytes(so_far)} of {format_bytes(result.sent_bytes)}"),
    )
    return View(
        (result.kind, result.ranks, result.sequence_parallel, now),
        table,
        lambda: figures.pair_step(result, step),
        _caption(result, now),
    )


def _caption(result: PairSteps, now: PairStep) -> str:
    between = {
        MLP: ("GELU looks at one number at a time: each rank does its own columns", "GELU"),
        ATTENTION: ("Each rank computes the attention of its own heads", "the heads"),
    }[result.kind]
    by_tokens = result.sequence_parallel
    return {
        "X": "Each rank has its own tokens of X" if by_tokens else "Every rank has all of X",
        "f(X)": "f gathers the tokens of all ranks" if by_tokens else "f copies X: nothing is sent",
        "XA": "Each rank multiplies with its columns of A, and gets its columns of X·A",
        "Y": f"{between[0]}; nothing is sent",
        "YB": "Each rank multiplies with its rows of B: a result of full size, but unfinished",
        "Z": "g adds up the results, and each rank keeps its own tokens"
        if by_tokens
        else "g adds up the unfinished results: every rank has Z",
        "dZ": "Backward: each rank has the gradient of its own tokens of Z"
        if by_tokens
        else "Backward: every rank has the gradient of Z",
        "g(dZ)": "g gathers the gradient of all tokens"
        if by_tokens
        else "g only copies the gradient on the way back: nothing is sent",
        "dY": "Each rank goes back through its rows of B, and has their gradient as well",
        "dXA": f"Back through {between[1]}, on each rank alone",
        "dX part": "Each rank goes back through its columns of A: a part of the gradient of X",
        "dX": "f adds up the parts, and each rank keeps those of its tokens"
        if by_tokens
        else "f adds up the parts: every rank has the whole gradient of X",
    }[now.makes] + "."
