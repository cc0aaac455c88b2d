"""Context parallelism: ring attention over slices of the sequence, equal to one process.

Every rank has all samples, but only its slice of each. Keys and values go round a ring, or are
gathered as Llama 3's training does (arXiv:2407.21783, section 3.3.2). torch's own
`context_parallel` needs CUDA; here its part is played by torch's all-gather with autograd, its
attention kernel with a mask, and DistributedDataParallel.
Run it with `course demo context --ranks 2`, or under torchrun.
"""

from dataclasses import dataclass
from typing import ClassVar, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, scaled_dot_product_attention
from torch.nn.parallel import DistributedDataParallel

from course_lib import launch, mine
from course_lib.chapters.ch12_experts_and_long_sequences import functional
from course_lib.demos.shared import prediction
from course_lib.demos.shared.comparison import Comparison
from course_lib.demos.shared.options import BatchOptions, option, whose_parts, with_yours
from course_lib.demos.shared.prediction import Sent, calls, ddp_calls
from course_lib.demos.shared.ranks import from_all_ranks, world
from course_lib.demos.shared.result import Result
from course_lib.demos.shared.trainee import Trainee
from course_lib.demos.shared.training import Batch, Training, both
from course_lib.scratch.context import RingAttention, SequenceRing, spread_sequence
from course_lib.scratch.gpt import Attention
from course_lib.theory.inputs.layout import Layout
from course_lib.trace import SEND, Trace
from course_lib.validation import divisible


@dataclass(frozen=True)
class Options(BatchOptions):
    """The options of the demo."""

    batch: int = option(4, "samples in one update; every rank has a slice of each")
    sequence: int = option(64, "characters in a sample")
    zigzag: bool = option(True, "train with an early and a late chunk on each rank as well")
    parts: str = whose_parts()


class Ring(Trainee):
    """scratch.context, with one chunk of the sequence on each rank.

    `parts`: "mine" uses the learner's forward pass, if it is built.
    """

    name = "ring"
    zigzag: ClassVar[bool] = False

    def __init__(self, training: Training, rank: launch.Rank, parts: str = "course") -> None:
        self.name += with_yours(parts, "ring_forward")
        model = training.build(rank.device)
        super().__init__(model, training.optimizer(model.parameters()))
        self.rank, self.layers = rank, model.blocks
        self.ring = SequenceRing(world(), self.zigzag)
        self.places = self.ring.places(training.sequence).to(rank.device)
        spread_sequence(model, self.ring, mine.get("ring_forward", parts))

    def backward(self, batch: Batch) -> Tensor:
        loss = self.share(self.model, batch)
        loss.backward()
        for gradient in self.gradients().values():
            dist.all_reduce(gradient)
        return loss

    def share(self, model: nn.Module, batch: Batch) -> Tensor:
        """This slice's share of the mean loss; all slices are equally long."""
        inputs, labels = both(lambda part: part[:, self.places], batch)
        logits = model(inputs, self.places)
        return cross_entropy(logits.flatten(0, 1), labels.flatten()) / self.rank.world

    def predicted(self, theory: Sent) -> Trace:
        """Predicted traffic: the theory's bytes, with an all-reduce for each gradient tensor."""
        tensors = len(list(self.model.parameters()))
        return Trace(
            [
                *calls(SEND, *theory[SEND]),
                *calls("all-reduce", tensors, theory["all-reduce"].size_bytes),
            ]
        )

    def scores(self) -> int:
        """Number of scores that this rank computes."""
        chunk = len(self.places) // len(self.ring.chunks(0))
        pairs = sum(len(list(self.ring.pairs(owner))) for owner in range(self.ring.ranks))
        return pairs * chunk**2


class ZigZag(Ring):
    """Ring attention with an early and a late chunk on each rank, which balances the work."""

    name = "zig-zag ring"
    zigzag = True


class Library(Ring):
    """Keys and values gathered on every rank: torch's all-gather, attention kernel, and DDP."""

    name = "torch: all-gather, DDP"

    def __init__(self, training: Training, rank: launch.Rank, _parts: str) -> None:
        super().__init__(training, rank)
        mask = self.places[:, None] >= torch.arange(training.sequence, device=rank.device)
        for block in self.layers:
            attention = cast(Attention, block.attention)
            block.attention = GatheredAttention(attention, self.ring, mask)
        self.ddp = DistributedDataParallel(self.model)

    def backward(self, batch: Batch) -> Tensor:
        loss = self.share(self.ddp, batch)
        (loss * self.rank.world).backward()  # DDP averages, but shares must be summed
        return loss

    def predicted(self, theory: Sent) -> Trace:
        """Predicted traffic: in each layer an all-gather forward and a reduce-scatter backward.

        Each has the keys and values of all ranks. They are kept for the backward pass, so this
        sends two thirds of the ring's bytes.
        """
        layers, ranks = len(self.layers), self.rank.world
        hops, size = theory[SEND]
        all_slices = size // hops * ranks
        assert hops == 3 * layers * (ranks - 1)
        return Trace(
            [
                *calls("all-gather", layers, layers * all_slices),
                *calls("reduce-scatter", layers, layers * all_slices),
                *ddp_calls([p.nbytes for p in self.model.parameters()], ranks),
            ]
        )

    def scores(self) -> int:
        """Number of scores that this rank computes: the kernel computes masked ones as well."""
        return len(self.places) ** 2 * self.rank.world


class GatheredAttention(RingAttention):
    """Attention of a slice's queries to the gathered keys and values."""

    def __init__(self, attention: Attention, ring: SequenceRing, mask: Tensor) -> None:
        super().__init__(attention, ring)
        self.mask = mask

    def mix(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        kv = torch.stack([k, v]).movedim(-2, 0).contiguous()  # the tokens first
        k, v = functional.all_gather(kv, self.ring.group).movedim(0, -2)
        return scaled_dot_product_attention(q, k, v, attn_mask=self.mask)


def main(options: Options) -> Result:
    """Train all versions and one process; every rank returns its own counts.

    The result has `scores[version][rank]`: products of a query and a key in one head and sample,
    including those that the mask hides within a chunk.
    """
    rank, training = launch.init(), options.training()
    layout = Layout(cp=rank.world, micro_batch=options.batch)
    layout.check(training.shape(), options.sequence)
    if options.zigzag:
        divisible("sequence", options.sequence, "2*ranks", 2 * rank.world)
    comparison = Comparison(training)
    theory = prediction.told(prediction.traffic(training, layout)).sent()
    predicted_bytes = prediction.predicted_stored(training, layout)
    scores = {}
    kinds: list[type[Ring]] = [Ring, ZigZag, Library] if options.zigzag else [Ring, Library]
    for kind in kinds:
        trainee = kind(training, rank, options.parts)
        sent = trainee.predicted(theory) if rank.world > 1 else None
        comparison.follow(trainee, sent, predicted_bytes)
        scores[trainee.name] = from_all_ranks(trainee.scores())
    notes = [
        f"  scores per head and sample on each rank, {name}: "
        + ", ".join(f"{count:,}" for count in counts)
        for name, counts in scores.items()
    ]
    return comparison.result("context parallelism", notes=notes, scores=scores)
