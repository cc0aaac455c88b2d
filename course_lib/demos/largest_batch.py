"""The largest batch that fits a limit: tried, doubling and halving, and predicted.

Each try is a whole update, and not the first, so AdamW has its states. With `--limit-mb` it fits if
its tensors do, on any device; without, on a GPU, if CUDA does not run out of memory. Alone, or
under DDP or FSDP, where it is the largest batch of each rank and must fit on all of them.
Run it with `course demo largest_batch --ranks 2 --technique fsdp --limit-mb 14`.
"""

from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from course_lib import launch
from course_lib.demos.shared.options import DemoOptions, option
from course_lib.demos.shared.prediction import FP32
from course_lib.demos.shared.ranks import from_all_ranks
from course_lib.demos.shared.result import Fact, Result
from course_lib.demos.shared.text import VOCAB
from course_lib.demos.shared.training import Batch, Training, mean_loss
from course_lib.measure.peak import fits_on_gpu, largest_batch, peak_bytes
from course_lib.scratch.gpt import GPT
from course_lib.theory.inputs.job import Job
from course_lib.theory.inputs.layout import Layout
from course_lib.theory.memory.activations import layer_activation_bytes
from course_lib.theory.memory.peak import OVERHEAD_BYTES, memory_moments
from course_lib.theory.memory.states import local_parameters

# The small GPT's recipe: fp32, fused AdamW, the loss in PyTorch's eager operators.
RECIPE = replace(
    FP32, gradient_life="backward", loss="eager", update="fused", gradient_as_bucket_view=True
)
# Under DDP gradients are views of its buckets, which stay allocated.
TECHNIQUES = {
    "alone": (RECIPE, 0),  # recipe, ZeRO stage
    "ddp": (replace(RECIPE, gradient_life="always"), 0),
    "fsdp": (RECIPE, 3),
}
_OFF = 0.03  # tolerance between prediction and tries, relative to the batch


@dataclass(frozen=True)
class Options(DemoOptions):
    """The options of this demo."""

    technique: str = option(
        "alone", "alone, where ranks do not talk, ddp or fsdp", among=TECHNIQUES
    )
    model: str = option("small", "tiny, small, medium, gpt2 or LAYERSxHIDDENxHEADS")
    sequence: int = option(32, "characters in a sample")
    limit_mb: float = option(
        40.0, "10^6 bytes that an update may need; 0: until a GPU is full", least=0
    )
    most: int = option(4096, "the largest batch that is tried", least=1)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.limit_mb and self.technique != "alone":
            raise ValueError(
                f"limit_mb 0 lets one rank run out of memory while {self.technique}'s others wait: "
                "pass a limit, or take technique alone"
            )
        self.training()

    def training(self) -> Training:
        """The training run, except for its batch."""
        return Training(self.model, sequence=self.sequence)

    def job(self, batch: int, ranks: int) -> Job:
        """The theory's job: an update of `ranks` ranks, each with `batch` samples."""
        recipe, stage = TECHNIQUES[self.technique]
        layout = Layout(dp=ranks, zero_stage=stage, micro_batch=batch)
        return Job(self.training().shape(), recipe, layout, sequence=self.sequence)


def main(options: Options) -> Result:
    """Search for the largest batch, and compare it with the predicted one."""
    rank = launch.init()
    ranks = 1 if options.technique == "alone" else rank.world
    if options.technique != "alone" and ranks == 1:
        raise ValueError(f"technique {options.technique} needs at least 2 ranks, or take alone")
    limit_bytes = round(options.limit_mb * 1e6)
    overhead_bytes = 0
    if not limit_bytes:
        if rank.device.type != "cuda":
            raise ValueError("limit_mb 0 needs a GPU, which has an end of its own: pass a limit")
        limit_bytes = torch.cuda.get_device_properties(rank.device).total_memory
        overhead_bytes = int(OVERHEAD_BYTES)
    trained = Trained(options, rank)
    tries: list[tuple[int, int, bool]] = []

    def fits(batch: int) -> bool:
        rows = trained.rows(batch)
        if options.limit_mb:
            peak = peak_bytes(partial(trained.update, rows), [*trained.states(), *rows])
            if ranks > 1:
                peak = max(from_all_ranks(peak))  # so that all ranks agree on the next batch
            tries.append((batch, peak, peak <= limit_bytes))
        else:
            tries.append((batch, 0, fits_on_gpu(partial(trained.update, rows))))
        return tries[-1][2]

    found = largest_batch(fits, options.most)
    predicted = largest_batch(
        lambda batch: predicted_bytes(options, batch, ranks, overhead_bytes) <= limit_bytes,
        options.most,
    )
    return Result(
        f"limit {limit_bytes / 1e6:,.1f} MB, {len(tries)} tries:",
        *(
            f"  batch {batch:>5}{f'{peak / 1e6:,.1f} MB' if peak else '':>12}   "
            f"{'fits' if fits_ else 'does not fit'}"
            for batch, peak, fits_ in tries
        ),
        f"the largest batch is {found}, predicted {predicted}",
        facts=[judged(found, predicted)] if options.limit_mb else (),
        limit_bytes=limit_bytes,
        tries=tries,  # batch, bytes at the peak (0: unknown), whether it fits
        found=found,
        predicted=predicted,
    )


def judged(found: int, predicted: int) -> Fact:
    """The gap between found and predicted batch; may be 1 sample or 3 % of the batch."""
    gap, most = abs(found - predicted), max(1, _OFF * predicted)
    what = f"the {found} samples that fit"
    return Fact(what, gap, tolerance=most, unit="samples", beside=f"{predicted}, predicted,")


class Trained:
    """A model after two updates, so that AdamW's states and DDP's final buckets exist."""

    def __init__(self, options: Options, rank: launch.Rank) -> None:
        self.training, self.device = options.training(), rank.device
        model = self.training.build(rank.device)
        self.model = wrapped(model, options.technique, rank)
        self.parameters = list(model.parameters())
        self.optimizer = torch.optim.AdamW(self.parameters, fused=True)
        for _ in range(2):
            self.update(self.rows(1))

    def rows(self, batch: int) -> Batch:
        """Random characters and labels, (batch, sequence) each."""
        shape = (batch, self.training.sequence)
        inputs, labels = (torch.randint(VOCAB, shape, device=self.device) for _ in range(2))
        return inputs, labels

    def update(self, rows: Batch) -> None:
        """Forward, backward and the optimizer's step."""
        mean_loss(self.model, rows).backward()
        self.optimizer.step()
        # DDP's gradients are views of its buckets, which stay allocated.
        self.optimizer.zero_grad(set_to_none=not isinstance(self.model, DistributedDataParallel))

    def states(self) -> list[Tensor]:
        """This rank's tensors between updates: weights, AdamW's states, DDP's gradients."""
        kept = [value for state in self.optimizer.state.values() for value in state.values()]
        gradients = [p.grad for p in self.parameters if p.grad is not None]
        every = [*self.parameters, *gradients, *kept]
        return [t.to_local() if isinstance(t, DTensor) else t for t in every]


def wrapped(model: GPT, technique: str, rank: launch.Rank) -> nn.Module:
    """The model wrapped in torch's DDP or FSDP, or the plain model."""
    if technique == "ddp":
        return DistributedDataParallel(model, gradient_as_bucket_view=True)
    if technique == "fsdp":
        mesh = init_device_mesh(rank.device.type, (rank.world,))
        for block in model.blocks:
            fully_shard(block, mesh=mesh)
        fully_shard(model, mesh=mesh, reshard_after_forward=False)
    return model


def predicted_bytes(options: Options, batch: int, ranks: int = 1, overhead_bytes: int = 0) -> int:
    """Peak bytes of one update: the theory's, plus terms it neglects as small in large models.

    Norms save a mean and a scale per token, attention a sum per token and head. While the backward
    pass is inside a layer's MLP, there are gradients of the head, of the MLP's last matrix and of
    the layers above, which FSDP has sharded by then, except the one being reduced.
    Within 1 kB of the tries for three samples or more; for fewer, later moments need a little more.
    """
    job = options.job(batch, ranks)
    shape, tokens = job.shape, batch * options.sequence
    local, moments = local_parameters(shape), memory_moments(job, overhead_bytes=overhead_bytes)
    ddp, fsdp = (options.technique == name for name in ("ddp", "fsdp"))
    norm = 8 * tokens
    small = 2 * norm + 4 * shape.heads * tokens  # of a layer
    ends, layer = 4 * local.ends_dense, 4 * local.layer_dense
    loss = replace(
        moments["loss"], gathered_parameters_bytes=fsdp * ends, gathered_gradients_bytes=0
    ).total_bytes
    begins = replace(moments["backward begins"], gathered_gradients_bytes=0).total_bytes
    head = local.table if ddp else local.head_dense  # DDP has put the norm's into a bucket
    first = 4 * (head + (shape.ffn + 1) * shape.hidden)  # gradients, once a layer is reached
    peaks = [loss + shape.layers * small + norm, moments["update"].total_bytes]
    for above in range(shape.layers):
        gone = above * (layer_activation_bytes(job) + small)
        come = 0 if ddp else above * layer // ranks
        if fsdp:  # one layer's gradients in flight; nothing to prefetch before the first layer
            come += layer * ((above > 0) - (above == shape.layers - 1))
        peaks.append(begins + shape.layers * small + first + come - gone)
    return max(peaks)
