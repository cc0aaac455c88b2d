"""Options that may not be, or do not fit each other, are refused in a sentence."""

import pytest
from together import explained

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
