"""Fully sharded data parallelism: mini-FSDP beside `fully_shard` (FSDP2).

Both train the same GPT as one process: equal losses and gradients, as many collectives and bytes as
the theory says, and 1/n of weights, gradients and optimizer states on each rank.
Run it with `course demo fsdp --ranks 2`, or under torchrun.
"""

from course_lib import launch
from course_lib.demos.fsdp import prediction
from course_lib.demos.fsdp.versions import TOLERANCES, FullyShard, Kind, MiniFSDP, Options
from course_lib.demos.shared.comparison import Comparison, Version, follow
from course_lib.demos.shared.training import OneProcess, Training, one_process
from course_lib.measure.wire import Total


def main(options: Options) -> Comparison:
    """Train both versions; every rank returns what it did, beside one process and the theory."""
    rank, training = launch.init(), options.training()
    reference = one_process(training, rank.device, clip=options.clip)
    kinds: tuple[Kind, ...] = (MiniFSDP, FullyShard)
    versions = [_version(kind, options, rank, reference) for kind in kinds]
    loss_tolerance, gradient_tolerance = TOLERANCES[options.precision]
    return Comparison.verified(
        "FSDP",
        rank,
        options.model,
        reference,
        versions,
        loss_tolerance=loss_tolerance,
        gradient_tolerance=gradient_tolerance,
        notes=[_padding_note(training, rank.world)],
    )


def _version(kind: Kind, options: Options, rank: launch.Rank, reference: OneProcess) -> Version:
    training, ranks = options.training(), rank.world
    if kind is MiniFSDP:
        units = prediction.flat_units(training, ranks)
        stored = prediction.stored(units, ranks)
        norms = 1
    else:
        units = prediction.tensor_units(training, ranks)
        stored = prediction.tensor_stored(training, rank.rank, ranks)
        # torch sums each tensor's norm.
        norms = len(list(prediction.without_memory(training).parameters()))
    sent = prediction.sent(training, units, ranks, options.precision, options.reshard)
    if options.clip and ranks > 1:
        sent["all-reduce"] = Total(1, 4 * norms)
    return follow(kind(options, rank), training, reference, sent, stored)


def _padding_note(training: Training, ranks: int) -> str:
    flat, tensors = prediction.flat_units(training, ranks), prediction.tensor_units(training, ranks)
    return (
        f"padding, in parameters: {flat.layer_padding} a layer and {flat.root_padding} in the root "
        f"of mini-FSDP, {tensors.layer_padding} and {tensors.root_padding} of fully_shard"
    )
