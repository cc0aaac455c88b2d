"""Exercises and quiz of chapter 17, the capstone: audits, economics, a plan that is built."""

import re
from collections.abc import Mapping
from functools import cache
from typing import Any

from course_lib.chapters.ch17_capstone.audits import Audit, audit_exercise
from course_lib.chapters.ch17_capstone.builds import claims, shared_rate
from course_lib.chapters.ch17_capstone.claimed import BLOOM, OTHERS, audit_run
from course_lib.chapters.ch17_capstone.costs import Decoding, sharded_backward
from course_lib.chapters.ch17_capstone.streams import Task, shared_timeline
from course_lib.checking import (
    Wrong,
    exercise,
    expect_calls,
    expect_choice,
    expect_entries,
    expect_number,
    expect_numbers,
    expect_parts,
)
from course_lib.checking.helpers import described, is_number, require_answer, same
from course_lib.theory import planner
from course_lib.theory.audits.gpt2_128 import CARD_BYTES
from course_lib.theory.compute import budget
from course_lib.theory.compute.flops import six_nd
from course_lib.theory.inputs import hardware
from course_lib.theory.inputs.hardware import Cluster
from course_lib.theory.inputs.job import Job
from course_lib.theory.inputs.layout import Layout
from course_lib.theory.inputs.models import MODELS
from course_lib.theory.inputs.recipe import Recipe
from course_lib.theory.inputs.shape import TransformerShape
from course_lib.theory.inputs.units import GIB
from course_lib.theory.memory.states import local_parameters, model_states
from course_lib.theory.network.step_traffic import step_traffic

_SEVENTY = MODELS["llama2-70b"].parameters().total


_WAITS = "waits_for(weights, layers, hidden, tp, sequences, card)"
_DECODES = (
    ("7b", 8, 1, "H100-SXM", "64 messages of 14 steps, each 3.4 µs"),
    ("70b", 8, 1, "RTX4090", "17 GB of weights are read for one token; the network is idle"),
    ("13b", 1, 1, "H100-SXM", "with tp 1 nothing is sent at all"),
    ("70b", 8, 512, "RTX4090", "the messages are 512 times as large, the weights are as before"),
    ("7b", 1, 512, "H100-SXM", "512 tokens use each weight 512 times, above the ridge of 295"),
    ("7b", 1, 128, "H100-SXM", "128 tokens stay below the ridge"),
)


@exercise("17.2")
def _waits_for(function: Any) -> None:
    cases = []
    for model, tp, sequences, card, because in _DECODES:
        shape, gpu = MODELS[f"llama2-{model}"], hardware.accelerator(card)
        token = Decoding(shape, gpu, tp=tp, batch=sequences)
        times = {"memory": token.read_s, "computing": token.compute_s}
        times |= {"bytes": token.transfer_s, "latency": token.latency_s}
        longest = max(times, key=times.__getitem__)
        read = shape.parameters().total - shape.embedding_parameters().total
        sizes = (read, shape.layers, shape.hidden)
        cases.append(((*sizes, tp, sequences, card), (longest, times[longest]), because))
    expect_calls(function, cases, signature=_WAITS, rel=5e-3)


# Lines of the plan for 70B, adapted to 13B.
_LINES: dict[str, tuple[object, str]] = {
    "32 of the 512 cards have nothing to do": (
        True,
        "40 cards are one copy, and 512 / 40 leaves 32",
    ),
    "with 40 micro-batches, one for each stage, no card ever waits": (
        False,
        "39 of 79 ticks are idle: a pipeline wants many more micro-batches than stages",
    ),
    "an update takes more than three times LLaMA-2's 4.2 million tokens": (
        True,
        "12 pipelines · 40 · 8 · 4096 = 15.7 million",
    ),
    "208 GB of states are less than 9 · 24 GB, so 9 cards can train it": (
        False,
        "activations, buffers and the network's own memory need room: it is a lower bound",
    ),
    "the first stage keeps 40 times the activations of the whole model": (
        False,
        "40 micro-batches of one layer: as much as one micro-batch of all 40 layers",
    ),
    "full recomputation makes 820 layers out of 40": (
        False,
        "each layer is computed once more, from its own input: 80 forward passes",
    ),
    "selective recomputation keeps the inputs of 5 groups of 8 layers, and nothing else": (
        False,
        "that is full recomputation by segments; selective drops attention's scores only",
    ),
    "40 micro-batches between two exchanges: each pays a fortieth of one": (
        True,
        "FLOP per byte sent are 6 t m / 8, so m = 40 makes them 40 times as many",
    ),
    "on H200 instead of H100, tensor parallelism reaches further: the memory is faster": (
        False,
        "it depends on peak and NVLink, and both are those of the H100",
    ),
}


@exercise("17.3")
def _plan_again(answer: Any) -> None:
    expect_entries(answer, _LINES, "a dict of True and False", each="True or False")


@cache
def _update_in_48_s() -> Audit:
    flop = six_nd(_SEVENTY, 16_384 * 4096)
    found = budget.achieved_flop_per_s(flop, 48, 2048) / 1e12
    return Audit(
        claim="an update of LLaMA-2 70B takes 48 s on 2,048 RTX 4090",
        found=found,
        unit="TFLOP/s",
        because="6 · 68.98e9 · 67.1e6 FLOP in 48 s on 2,048 cards, of which each has 165.2 TFLOP/s",
        verdict="does not hold",
        causes={
            "the peak": "",
            "the bubble": "that is time in which cards wait, and here no card ever waits",
            "the exchange of gradients": "it is time in which cards wait: a quarter of a second",
            "attention's scores": "they add 4 % of the FLOP, and 48 s are too short by more",
            "a layer rounded up to 1B": "exact layers are smaller, which helps the claim",
        },
        sources={
            "NVIDIA's Ada whitepaper, appendix A": "",
            "note 004": "it is the claim itself",
            "arXiv:2307.09288": "LLaMA-2's paper counts hours on A100 and has no word on this card",
            "arXiv:2104.04473": "it has pipelines on A100, and no number of this card",
        },
        mistakes={
            330.0: "that is the peak which the claim assumes; how much work is in the update?",
            found * 2048: "that is what all cards do together",
            found / 4096: "16,384 are sequences: how many tokens has each?",
            found * 8 / 6: "the claim counts 6 FLOP for each parameter and token",
        },
    )


AUDIT_A = audit_exercise("17.4", _update_in_48_s)


def _room(model: str, per_parameter: int) -> float:
    """Bytes of a Titan RTX left for activations, after model states and 1 GiB of CUDA."""
    return CARD_BYTES - GIB - per_parameter * MODELS[model].parameters().total


@cache
def _twice_the_batch() -> Audit:
    small, large = "gpt2-124m", "gpt2-774m"
    fp32 = Recipe("fp32", "fp32", master_copy=False)
    states = model_states(1, fp32, Layout())
    whole = states.model_states_bytes + 4  # DDP's buckets are a copy of the gradients
    half = model_states(1000, fp32, Layout(dp=2, zero_stage=3)).model_states_bytes // 1000
    found = _room(small, half) / _room(small, whole)
    return Audit(
        claim="FSDP doubles the batch that fits on two cards of 24 GB",
        found=found,
        unit="times the batch of GPT-2 124M",
        because="(card - CUDA - 8 P) / (card - CUDA - 20 P): 2.05 for Large, and 1.07 for 124M",
        verdict="holds only if",
        causes={
            "the states' share of the card": "",
            "sequences of 128 tokens": "the bytes of a sample cancel in your ratio",
            "two cards instead of more": "on any number of cards less than 2.5 GB become free here",
            "fp32 instead of bf16": "AdamW in bf16 with a master copy takes 16 bytes as well",
            "the network": "it takes time, and no memory of this size",
        },
        sources={
            "github.com/huggingface/blog, pytorch-fsdp.md": "",
            "note 002": "it repeats the claim without its table",
            "arXiv:2304.11277": "FSDP's paper has neither these cards nor these batches",
            "arXiv:1910.02054": "ZeRO's paper has neither these cards nor these batches",
        },
        mistakes={
            _room(large, half) / _room(large, whole): "that is GPT-2 Large, the published case",
            _room(small, half) / _room(small, whole - 4): "DDP's buckets are missing",
            whole / half: "that is the factor of the states: what is left of the card?",
        },
    )


AUDIT_B = audit_exercise("17.5", _twice_the_batch)


@cache
def _give_way() -> Audit:
    """A backward pass of 10 layers, in a steady state around the middle."""
    tasks = sharded_backward(
        10,
        backward=Task("backward", "computing", 10e-3, {"processor": 1.0}, weight=9),
        gather=Task("gather", "messages", 3e-3, {"network": 1.0}),
        scatter=Task("scatter", "messages", 6e-3, {"network": 1.0}),
        prepare=Task("prepare", "messages", 1e-3, {"processor": 1.0}),
    )
    run = shared_timeline(tasks)
    found = 1000 * (run.end_s("backward 5") - run.end_s("backward 6"))
    return Audit(
        claim="small kernels before each reduce-scatter slow FSDP's messages, and computing waits",
        found=found,
        unit="ms",
        because="the copies get a tenth of the processor: 10 + 6 + 3 ms of messages for each layer",
        verdict="holds",
        causes={
            "the processor they share": "",
            "the network": "with copies at full speed 1 + 6 + 3 ms hide behind the computing",
            "the size of the copies": "at full speed their 1 ms would hide as well",
            "too few streams": "a third stream would get its part of the same processor",
            "the CPU": "nothing waits for it here",
        },
        sources={
            "Khrushchev 2024, YaFSDP (Medium)": "",
            "github.com/yandex/YaFSDP, README": "it has seconds of whole steps, and no profile",
            "arXiv:2304.11277": "FSDP's paper does not report the effect",
            "note 001": "it repeats the claim",
        },
        mistakes={
            10.0: "as if the copies cost nothing, and messages were hidden",
            11.0: "that is the processor's work; does the next layer's gather come in time?",
            20.0: "as if nothing ran at the same time",
        },
    )


AUDIT_C = audit_exercise("17.6", _give_way)


@cache
def _bloom() -> Audit:
    seconds = BLOOM.gpu_hours * budget.HOUR_S
    hardware_flop = six_nd(BLOOM.parameters, BLOOM.tokens, "full")
    found = budget.achieved_flop_per_s(hardware_flop, seconds) / 1e12
    return Audit(
        claim="BLOOM's training sustained 156 TFLOP/s on each GPU",
        found=found,
        unit="TFLOP/s",
        because="8 · 176.247e9 · 366e9 FLOP, recomputation included, over 1,082,990 GPU-hours",
        verdict="does not hold",
        causes={
            "hours below the best speed": "",
            "recomputation": "both numbers contain it now",
            "sparse matrices": "the A100's 312 TFLOP/s are dense",
            "attention's scores": "6 N leaves them out, but they are 2 % at 2,048 tokens",
            "four spare nodes": "1,082,990 hours are 384 GPUs for 117 days, without the spare ones",
        },
        sources={
            "arXiv:2211.05100": "",
            "github.com/bigscience-workshop/bigscience, tr11-176B-ml": "",
            "genci.fr, news on BLOOM's award": "it is the claim itself",
            "arXiv:2001.08361": "6 N D is from there, and it is older than BLOOM",
        },
        mistakes={
            found
            * 6
            / 8: "the claim's FLOP contain the second forward pass: compare like with like",
            156.0: "that is the claimed one; what do tokens and hours give?",
        },
    )


AUDIT_D = audit_exercise("17.7", _bloom)


@exercise("17.8")
def _throughput(answer: Any) -> None:
    wants = "days, a factor and three numbers of GPUs"
    expect_parts(answer, 5, wants)
    saved = budget.saved_fraction(8.87, 6.97)
    wrong = (60 / (1 + saved), 1 + saved)
    if any(same(given, number, 2e-3) for given, number in zip(answer, wrong, strict=False)):
        raise Wrong(
            "takes 21.4 % less time for 21.4 % more work, expected two different numbers: one is "
            "a part of the old time, the other of the new"
        )
    expect_numbers(
        answer,
        wants,
        (60 * (1 - saved), "60 days less 21.4 % of them", 5e-3, "days"),
        (8.87 / 6.97, "the time is in the denominator", 5e-3, ""),
        (256 * (1 - saved), "the same work in the same time: 256 · 6.97 / 8.87", 5e-3, "GPUs"),
        (150 / saved, "150 are 21.4 % of 700", 5e-3, "GPUs"),
        (150 / 0.0232, "150 are 2.32 % of 6,466: the claim rests on the row", 5e-3, "GPUs"),
    )


_TRAININGS = {
    "llama3-70b, 16 GPUs, 256 × 8192 tokens": ("llama3-70b", 2, 256, 8192),
    "gpt3-175b, 64 GPUs, 512 × 2048 tokens": ("gpt3-175b", 8, 512, 2048),
    "llama3-8b, 16 GPUs, 128 × 8192 tokens": ("llama3-8b", 2, 128, 8192),
}
_DEARER = 1.25


@cache
def _larger_memory(training: str) -> tuple[str, float]:
    """What the planner gains from 141 GB instead of 80, and the speedup factor of a step."""
    model, nodes, batch, sequence = _TRAININGS[training]
    old, new = (
        planner.plan(
            MODELS[model],
            Recipe(),
            Cluster(hardware.accelerator(card), nodes),
            batch,
            sequence=sequence,
        ).best(1)[0]
        for card in ("H100-SXM", "H200-SXM")
    )
    cuts = [plan.layout.tp * plan.layout.pp * plan.layout.cp for plan in (old, new)]
    bought = "larger micro-batches"
    if old.recipe.recompute != new.recipe.recompute:
        bought = "no recomputation"
    elif cuts[1] < cuts[0]:
        bought = "fewer cuts"
    return bought, old.step_s / new.step_s


@exercise("17.9")
def _memory(answer: Any) -> None:
    expect_parts(answer, 2, "a dict of words and a dict of True and False")
    bought, cheaper = {}, {}
    for training in _TRAININGS:
        word, faster = _larger_memory(training)
        bought[training] = (word, "compare recompute, then tp · pp · cp, then micro_batch")
        cheaper[training] = (faster > _DEARER, f"its step is {faster:.2f} times as fast")
    words = "'no recomputation', 'fewer cuts' or 'larger micro-batches'"
    expect_entries(answer[0], bought, f"a dict of {words}", each=words)
    expect_entries(answer[1], cheaper, "a dict of True and False", each="True or False")


def _built(hidden: int = 64, batch: int = 8, pieces: int = 2, dp: int = 2) -> tuple[int, ...]:
    """Bytes that rank 0 passes to tp's all-reduces, pp's messages and dp's all-reduces."""
    shape = TransformerShape(4, hidden, 4, 4 * hidden, 128, context=16)
    layout = Layout(dp=dp, tp=2, pp=2, micro_batch=batch // (dp * pieces), accumulation=pieces)
    recipe = Recipe("fp32", "fp32", master_copy=False)
    entries = step_traffic(Job(shape, recipe, layout, sequence=16), 0).collectives
    return tuple(
        round(sum(x.count * x.size_bytes for x in entries if (x.axis, x.operation) == kind))
        for kind in (("tp", "all-reduce"), ("pp", "send-recv"), ("dp", "all-reduce"))
    )


def _changes() -> dict[str, tuple[object, str]]:
    """For each change, the axis whose bytes at least double, and why."""
    cases = {
        "16 sequences in an update, in 4 pieces": (
            _built(batch=16, pieces=4),
            "twice as many pieces of the same size pass, and gradients do not grow with them",
        ),
        "hidden 128 instead of 64": (
            _built(hidden=128),
            "activations grow with the hidden size, matrices with its square",
        ),
        "4 pieces of one sequence instead of 2 of two": (
            _built(pieces=4),
            "twice as many messages of half the size",
        ),
        "4 replicas instead of 2, the same 8 sequences": (
            _built(dp=4),
            "each replica has half of the sequences, and gradients of the same size",
        ),
    }
    words = {(True, True): "both", (True, False): "tp", (False, True): "dp"}
    before = _built()
    return {
        change: (words.get((tp >= 2 * before[0], dp >= 2 * before[2]), "neither"), because)
        for change, ((tp, _, dp), because) in cases.items()
    }


@exercise("17.10")
def _bytes(answer: Any) -> None:
    expect_parts(answer, 4, "three numbers of bytes and a dict")
    tp, pp, dp = _built()
    stored = local_parameters(
        TransformerShape(4, 64, 4, 256, 128, context=16), Layout(dp=2, tp=2, pp=2)
    ).total
    expect_numbers(
        answer[:3],
        "three numbers of bytes",
        (tp, "(4 · 2 + 1) messages for each of two pieces, 2 · 16 · 64 numbers each", 0, "B"),
        (pp, "one output of 2 · 16 · 64 numbers for each of two pieces", 0, "B"),
        (dp, f"the gradients of {stored:,} numbers, once in an update", 0, "B"),
    )
    words = "'tp', 'dp', 'both' or 'neither'"
    expect_entries(answer[3], _changes(), f"a dict of {words}", each=words)


_OWN = ("parameters", "tokens", "gpu_hours", "peak_flop_per_s")
_ADDRESS = re.compile(r"arxiv:\s*\d{4}\.\d{4,5}|[\w-]+\.[a-z]{2,}/\S", re.I)
_KNOWN = (BLOOM, *OTHERS)


def _own_sentence(answer: Mapping[str, Any]) -> str:
    return f"{answer['source']}: MFU {answer['utilisation']:.0%}, {answer['verdict']}"


@exercise("17.13", verdict=_own_sentence)
def _own_claim(answer: Any) -> None:
    require_answer(answer)
    keys = ("source", *_OWN, "utilisation", "verdict")
    if not isinstance(answer, dict) or any(key not in answer for key in keys):
        raise Wrong(f"wants a dict with {', '.join(keys)}, got {described(answer)}")
    for key in _OWN:
        if not is_number(answer[key]) or not 0 < answer[key] < 1e30:
            raise Wrong(f"wants a number above 0 for {key!r}, got {described(answer[key])}")
    source = answer["source"]
    if not isinstance(source, str) or not _ADDRESS.search(source):
        raise Wrong(f"wants an address or an arXiv number for 'source', got {described(source)}")
    numbers = [float(answer[key]) for key in _OWN]
    for run in _KNOWN:
        known = (run.parameters, run.tokens, run.gpu_hours)
        if all(abs(own / other - 1) < 0.03 for own, other in zip(numbers, known, strict=False)):
            raise Wrong(f"gave {run.name}, expected a run that the chapter has not judged")
    judged = audit_run(*numbers, source=source)
    because = "6 · parameters · tokens over the hours' seconds and the peak"
    expect_number(answer["utilisation"], judged.utilisation, because, rel=1e-2)
    expect_choice(answer["verdict"], judged.verdict, because, ("impossible", "poor", "plausible"))


BUILDS = (shared_rate.SHARED_RATE, claims.CLAIMS)
