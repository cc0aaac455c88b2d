"""What each prediction is about, so that guesses can be judged by topic."""

from collections.abc import Mapping
from typing import Any

TOPICS = ("memory", "messages", "time", "FLOPs", "counts")
_KEYS = {
    "memory": "2.memory 2.bytes_per_sample 3.all_in_bf16 3.with_master_copy 3.eight_bit 3.kept "
    "3.peak 3.over_time 3.leak 4.block 4.with_scores 4.less 4.peak 4.operators 8.stage1 "
    "8.stored 8.moment 9.extra 9.meta 9.allocations 9.buffers 10.plain 10.cut "
    "11.held_on_2 14.gathered 17.xl",
    "messages": "6.messages 6.bytes 6.tree 6.nccl 6.cross 7.more_copies 7.calls 7.lowrank 8.stage3 "
    "8.offload 9.gathers 9.scatters 9.waiting 9.hiding 9.units 9.refined 9.copies "
    "9.copied 10.pair_bytes 10.sp 10.count 10.bytes 10.left 10.share_bytes 11.messages "
    "11.bytes 11.chunks 12.routed 12.zig_bytes 12.gathered 12.least 12.folded 13.tp_bytes "
    "13.four 14.factor 14.exchange 14.overhead 17.dp_bytes",
    "time": "5.days 5.slower 6.ms 6.alpha 6.slow_ring 6.slow_tree 6.busbw 6.rails 7.step 7.tail "
    "7.end 10.faster 10.rescued 11.idle 11.many 11.twice 11.groups 13.slower 13.shared "
    "13.v3_waits 14.saturated 14.swap 15.interval 15.ended 15.waste 16.factor "
    "16.straggler 16.busbw 16.words 16.share 16.busy 17.days 17.time 17.ddp 17.polite "
    "17.kept 17.token",
    "FLOPs": "4.factor 5.first_layer 5.factor 5.gain 5.meta 5.mfu 12.active 12.more_experts "
    "12.zigzag 17.bloom",
}
_BY_KEY = {key: topic for topic, keys in _KEYS.items() for key in keys.split()}
_BY_UNIT = {
    "FLOPs": ("FLOP", "FLOP/s", "TFLOP/s"),
    "memory": ("B", "KB", "MB", "GB", "GiB"),
    "time": ("s", "ms", "µs", "min", "h", "days"),
}


def topic_of(key: str, record: Mapping[str, Any]) -> str:
    """The topic of a prediction by its key; of one that is not listed, by its unit."""
    if key in _BY_KEY:
        return _BY_KEY[key]
    unit = record.get("unit", "")
    return next((topic for topic, units in _BY_UNIT.items() if unit in units), "counts")
