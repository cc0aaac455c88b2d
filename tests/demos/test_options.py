"""Options that may not be, or do not fit each other, are refused in a sentence."""

import pytest
from together import explained, refused

from course_lib import demos

CASES = {
    "checkpoint": [({"save_after": 6}, "save_after must be below steps 6, got 6")],
    "checkpointing": [
        ({"segment": 9}, "segment must be at most 4"),
        ({"dropout": 1.0}, "dropout must be below 1, got 1.0"),
    ],
    "collectives": [
        ({"operations": "all-reduces"}, "did you mean '.*-all-reduce'"),
        ({"smallest": 64, "largest": 32}, "largest must be at least 64"),
        ({"link_latency_us": float("inf")}, "link_latency_us must be finite"),
        ({"times": 1}, "times must be True or False"),
    ],
    "ddp": [
        ({"steps": 0}, "steps must be at least 3"),
        ({"micro_batch": 1.5}, "micro_batch must be a whole number"),
        ({"model": "2x64x5"}, "hidden 64 is not divisible by heads 5"),
        ({"bucket_cap_mb": -1}, "bucket_cap_mb must be at least 0"),
        ({"learning_rate": float("nan")}, "learning_rate must be finite"),
        ({"sequence": 1}, "sequence must be at least 2"),
        ({"parts": "theirs"}, "parts 'theirs' is not one of course, mine"),
    ],
    "elastic": [
        ({"kill_after": 10}, "kill_after must be below steps 10, got 10"),
        ({"kill_rank": -2}, "kill_rank must be at least -1"),
        ({"limit_s": 0}, "limit_s must be above 0"),
    ],
    "experts": [({"top_k": 5}, "top_k must be at most 4")],
    "faults": [
        ({"kind": "kil"}, "did you mean 'kill'"),
        ({"steps": 2, "step": 3}, "step must be at most 2"),
    ],
    "fsdp": [({"parts": "mine", "meta": True}, "meta fills the shards of the course's own units")],
    "hybrid": [({"batch": 1}, "batch must be at least 2"), ({"model": "128"}, "not ROWSxORDER")],
    "largest_batch": [
        ({"technique": "tp"}, "technique 'tp'"),
        ({"technique": "ddp", "limit_mb": 0}, "limit_mb 0 lets one rank run out of memory"),
    ],
    "local_sgd": [({"every": 25}, "every must be at most 24")],
    "multi_device": [({"devices": 3}, "devices 3 are more than the model's 2 layers")],
    "one_update": [
        ({"fault": "no_f"}, "fault no_f is one of tp: set technique to that"),
        ({"fault": "seed", "technique": "tp"}, "set dropout, for example to 0.1"),
        ({"technique": "ddp", "dropout": 0.1}, "take technique one or tp"),
    ],
    "overlap": [({"trace": "/no/such/folder/t.json"}, "no folder that exists")],
    "pairwise": [
        ({"slow": "rank2"}, "slow 'rank2' is no rank and no pair"),
        ({"slow": "1-2-3"}, "is no rank and no pair"),
    ],
    "parameter_server": [
        ({"model": "512x9"}, "order of the model must be at most 8"),
        ({"slow": 21}, "slow must be at most 20"),
    ],
    "pipeline": [
        ({"micro_batches": 3}, "batch 16 is not divisible by micro_batches 3"),
        ({"schedule": "1f2b"}, "schedule '1f2b' is not one of .* mean '1f1b'"),
    ],
    "step_memory": [({"version": "FSDB"}, "version 'FSDB'")],
    "zero": [({"parts": "mine", "offload": True}, "offload needs parts course")],
}


@pytest.mark.parametrize("name", CASES)
def test_bad_options_are_explained(name):
    explained(demos.load(name).Options, CASES[name])


FEW = "batch 1 leaves some of 2 ranks without a sample"
MORE = " 3 is more than the 2 ranks started: start 3"
EMPTY = " leaves a stage without a layer"
GPT = {"model": "3x16x2", "sequence": 8}
CHECKPOINT = {"model": "1x16x2", "sequence": 8, "steps": 4, "save_after": 2}
PIPELINE = {"sequence": 8, "batch": 8, "micro_batches": 4, "steps": 3}
SERVER = {"model": "512x2", "steps": 4, "sequence": 16}
TURNS = "interleaved"
TP = {"model": "2x16x4", "batch": 4, "sequence": 8}
ON_RANKS = {  # by ranks: demo, options, what every rank says
    1: [
        ("largest_batch", {"technique": "fsdp"}, "technique fsdp needs at least 2 ranks"),
        ("overlap", {}, "start at least 2"),
        ("prefetch", {}, "start at least 2"),
    ],
    2: [
        ("checkpoint", CHECKPOINT | {"save_ranks": 3}, f"save_ranks{MORE}"),
        ("checkpoint", CHECKPOINT | {"load_ranks": 3}, f"load_ranks{MORE}"),
        ("context", {"sequence": 23}, "sequence 23 is not divisible by cp 2"),
        ("context", {"sequence": 22}, r"sequence 22 is not divisible by 2\*ranks 4"),
        ("ddp", {"micro_batch": 200}, "would drop them all"),
        ("experts", {"experts": 3}, "experts 3 is not divisible by ep 2"),
        ("experts", {"batch": 1}, FEW),
        ("experts", {"batch": 3, "fixed_routes": True}, "batch 3 is not divisible by ranks 2"),
        ("experts", {"experts": 6, "fixed_routes": True}, "256 is not divisible by experts 6"),
        ("fsdp", GPT | {"batch": 1}, FEW),
        ("fsdp_tp", TP | {"tp": 3}, "ranks 2 is not divisible by tp 3"),
        ("fsdp_tp", TP | {"tp": 1, "batch": 3}, "batch 3 is not divisible by dp 2"),
        ("fsdp_tp", TP | {"tp": 1, "sequence": 9}, "sequence 9 is not divisible by dp 2"),
        ("fsdp_tp", TP | {"model": "1x12x3"}, "heads 3 is not divisible by tp 2"),
        ("local_sgd", GPT | {"batch": 1}, FEW),
        ("multi_device", GPT | {"batch": 1}, FEW),
        ("hybrid", {}, "ranks 2 is not 4, one for each of trainer"),
        ("pairwise", {"repeats": 1}, "tests has 1 of two pairs"),
        (
            "parameter_server",
            SERVER | {"servers": 2},
            "ranks 2 leaves no trainer beside 2 servers: take at least 3",
        ),
        (
            "parameter_server",
            SERVER | {"batch": 1},
            "batch 1 is less than 2 ranks: .* take at least batch 2",
        ),
        ("samples", {"samples": 3, "drop_last": True}, "would drop them all"),
        (
            "three_d",
            GPT | {"dp": 2, "tp": 2, "pp": 2},
            r"world 2 is not dp\*tp\*pp\*cp = 2\*2\*2\*1 = 8",
        ),
        ("three_d", GPT | {"pp": 2, "model": "1x16x2"}, f"pp.virtual_stages 2{EMPTY}"),
        ("three_d", GPT | {"tp": 2, "model": "1x9x3"}, "heads 3 is not divisible by tp 2"),
        ("three_d", GPT | {"micro_batches": 3}, r"batch 8 is not divisible by dp\*micro_batches 3"),
        (
            "three_d",
            GPT | {"schedule": TURNS, "model": "4x16x2", "micro_batches": 1},
            "accumulation 1 is not divisible by pp 2",
        ),
        ("tp", GPT | {"model": "1x18x3"}, "heads 3 is not divisible by tp 2"),
        (
            "tp",
            GPT | {"sequence": 9, "sequence_parallel": True},
            "sequence/cp 9 is not divisible by tp 2",
        ),
        ("zero", GPT | {"batch": 5, "accumulation": 3}, "batch 5 leaves a micro-batch empty.* = 6"),
    ],
    3: [
        ("pairwise", {"repeats": 1}, "ranks 3 is no power of two"),
        ("pipeline", PIPELINE | {"model": "2x16x2"}, f"pp.virtual_stages 3{EMPTY}"),
        (
            "pipeline",
            PIPELINE | {"schedule": "zbv", "model": "6x16x2"},
            "accumulation of zbv must be at least 5",
        ),
        ("pipeline", PIPELINE | {"schedule": TURNS}, "accumulation 4 is not divisible by pp 3"),
        ("three_d", GPT | {"tp": 2}, r"world 3 is not dp\*tp\*pp\*cp = 1\*2\*1\*1 = 2"),
    ],
}


@pytest.mark.parametrize("ranks", ON_RANKS)
def test_what_the_ranks_cannot_share_is_explained(ranks):
    refused(ON_RANKS[ranks], ranks)
