"""What the theory says about ZeRO on these ranks: bytes kept and bytes sent, unit by unit.

A unit is a layer, or all that is outside the layers. Its parameters P are padded to a multiple of
the n ranks: by -P mod n, which is all that is added to the theory here.
"""

from collections import Counter
from dataclasses import dataclass, replace

from course_lib.demos.shared.prediction import (
    FP32,
    Sent,
    Stored,
    add_calls,
    stored_states,
    traffic,
)
from course_lib.demos.shared.training import Training
from course_lib.measure.wire import Total
from course_lib.theory.inputs.layout import Layout
from course_lib.theory.memory.states import LocalParameters, local_parameters
from course_lib.theory.network.buckets import ddp_buckets
from course_lib.theory.network.collectives import sent_bytes, zero_volume
from course_lib.theory.network.policy import CommunicationPolicy

BYTES = FP32.weight_bytes


@dataclass(frozen=True)
class ZeroPrediction:
    """Predictions for one stage; `accumulation` micro-batches make one update."""

    training: Training
    ranks: int
    stage: int
    accumulation: int = 1

    @property
    def layout(self) -> Layout:
        """The ranks for the theory."""
        return Layout(dp=self.ranks, zero_stage=self.stage, accumulation=self.accumulation)

    def units(self) -> dict[str, tuple[int, int]]:
        """The number of units, and the parameters of each, for the layers and for the ends."""
        local = local_parameters(self.training.shape())
        layers = self.training.size[0]
        return {"layers": (layers, local.layer_dense), "ends": (1, local.ends_dense)}

    def padding(self, parameters: int) -> int:
        """Zeros behind a unit, in bytes; stage 0 needs none."""
        return BYTES * (-parameters % self.ranks) if self.stage else 0

    def sent(self) -> Sent:
        """Collectives of one update: `step_traffic` with a bucket for each unit."""
        totals: Sent = {}
        for what, (_, parameters) in self.units().items():
            policy = CommunicationPolicy(bucket_bytes=BYTES * parameters)
            for entry in traffic(self.training, self.layout, policy=policy).collectives:
                if entry.what.endswith(what):
                    size = round(entry.size_bytes) + self.padding(parameters)
                    add_calls(totals, entry.operation, entry.count, entry.count * size)
        return totals

    def stored(self, offload: bool) -> Stored:
        """Bytes of this rank by consumer: the states of each unit."""
        recipe = replace(FP32, offload="optimizer" if offload else "none")
        totals: Counter[str] = Counter()
        for count, parameters in self.units().values():
            local = LocalParameters(parameters)
            kept = stored_states(local, self.layout, recipe)
            if self.stage < 3:  # whole weights are padded
                kept["weights"] += self.padding(parameters)
            if offload:
                kept["on the host"] = stored_states(local, self.layout)["optimizer"]
            for what, size in kept.items():
                totals[what] += count * size
        if offload:
            totals["on the host"] += self.moved()
        return dict(totals)

    def moved(self) -> int:
        """Bytes over the bus in one update, each way, for this rank's parts.

        Gradients go to the host and weights come back. The host keeps a copy of those weights.
        """
        ranks = self.ranks if self.stage else 1
        return sum(BYTES * count * -(-size // ranks) for count, size in self.units().values())

    def volume(self) -> float:
        """Bytes that this rank sends in one update with one micro-batch, by ZeRO's section 7.

        The ends of stage 3 are gathered once and not twice, as stage 2 does.
        """
        (layers, layer), (_, ends) = self.units().values()
        inside = layers * (BYTES * layer + self.padding(layer))
        outside = BYTES * ends + self.padding(ends)
        return zero_volume(inside, self.stage, self.ranks) + zero_volume(
            outside, min(self.stage, 2), self.ranks
        )


def sent_volume(sent: Sent, ranks: int) -> float:
    """Bytes that one rank sends for the collectives of a log.

    Broadcasts are taken to be one of each rank's part: a rank is the end of one chain and passes
    the other parts on, as in an all-gather.
    """
    return sum(
        sent_bytes("all-gather" if operation == "broadcast" else operation, size, ranks)
        for operation, (_, size) in sent.items()
    )


def redundancy_optimizer_parts(sizes: list[int], ranks: int) -> list[int]:
    """Parameters of each rank under torch's ZeroRedundancyOptimizer, which does not cut tensors.

    The largest first, each to the rank that has least.
    """
    parts = [0] * ranks
    for size in sorted(sizes, reverse=True):
        parts[parts.index(min(parts))] += size
    return parts


def redundancy_optimizer_stored(sizes: list[int], rank: int, ranks: int) -> Stored:
    """Bytes of a rank under it: whole weights and gradients, two moments of its own part."""
    own = redundancy_optimizer_parts(sizes, ranks)[rank]
    whole = BYTES * sum(sizes)
    return {"weights": whole, "gradients": whole, "optimizer": 2 * BYTES * own}


def redundancy_optimizer_sent(sizes: list[int], ranks: int) -> Sent:
    """Its collectives: DDP all-reduces whole gradients, then each rank broadcasts its part."""
    if ranks == 1:
        return {}
    buckets = ddp_buckets([BYTES * size for size in reversed(sizes)])
    return {
        "all-reduce": Total(len(buckets), sum(buckets)),
        "broadcast": Total(ranks, sum(buckets)),
    }
