"""The largest batch that fits a limit: tried, doubling and halving, and predicted.

Each try is a whole update, forward, backward and AdamW. With `--limit-mb` it fits if its tensors
do, on any device; without, on a GPU, if CUDA does not run out of memory. Ranks do not talk.
Run it with `course demo largest_batch --ranks 1 --limit-mb 40`.
"""

from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from course_lib import launch
from course_lib.demos.shared.batch import Batch, mean_loss
from course_lib.demos.shared.options import DemoOptions, option
from course_lib.demos.shared.text import VOCAB
from course_lib.demos.shared.training import Training
from course_lib.measure.largest_batch import fits_on_gpu, largest_batch, peak_bytes
from course_lib.theory.inputs.job import Job
from course_lib.theory.inputs.layout import Layout
from course_lib.theory.inputs.recipe import Recipe
from course_lib.theory.memory.peak import OVERHEAD_BYTES, memory_moments
from course_lib.validation import number, whole

# What the small GPT trains in: fp32, AdamW fused, the loss in PyTorch's own operators.
RECIPE = Recipe(
    "fp32", "fp32", master_copy=False, gradient_life="backward", loss="eager", update="fused"
)
_OFF = 0.03  # of the batch, between prediction and tries


@dataclass(frozen=True)
class Options(DemoOptions):
    """What the demo can be asked for."""

    model: str = option("small", "tiny, small, medium, gpt2 or LAYERSxHIDDENxHEADS")
    sequence: int = option(32, "characters in a sample")
    limit_mb: float = option(40.0, "10^6 bytes that an update may need; 0: until a GPU is full")
    most: int = option(4096, "the largest batch that is tried")

    def __post_init__(self) -> None:
        super().__post_init__()
        number("limit_mb", self.limit_mb, least=0)
        whole("most", self.most)
        self.training()

    def training(self) -> Training:
        """What is trained, but for the batch."""
        return Training(self.model, sequence=self.sequence)


@dataclass(frozen=True)
class Result:
    """Every try in order, and the two answers."""

    limit_bytes: int
    tries: list[tuple[int, int, bool]]  # batch, bytes at the peak (0: unknown), whether it fits
    found: int
    predicted: int

    def verify(self) -> "Result":
        """Return itself; AssertionError where prediction and tries are too far apart."""
        if abs(self.found - self.predicted) > max(1, _OFF * self.predicted):
            raise AssertionError(f"found {self.found} samples, predicted {self.predicted}")
        return self

    def report(self) -> str:
        """A line for each try, and the answer."""
        lines = [f"limit {self.limit_bytes / 1e6:,.1f} MB, {len(self.tries)} tries:"]
        for batch, peak, fits in self.tries:
            size = f"{peak / 1e6:,.1f} MB" if peak else ""
            lines.append(f"  batch {batch:>5}{size:>12}   {'fits' if fits else 'does not fit'}")
        lines.append(f"the largest batch is {self.found}, predicted {self.predicted}")
        return "\n".join(lines)


def main(options: Options) -> Result:
    """Search on this rank; rank 0's answer is reported."""
    device = launch.init().device
    limit_bytes = round(options.limit_mb * 1e6)
    overhead_bytes = 0
    if not limit_bytes:
        if device.type != "cuda":
            raise ValueError("limit_mb 0 needs a GPU, which has an end of its own: pass a limit")
        limit_bytes = torch.cuda.get_device_properties(device).total_memory
        overhead_bytes = int(OVERHEAD_BYTES)
    trained = Trained(options, device)
    tries: list[tuple[int, int, bool]] = []

    def fits(batch: int) -> bool:
        rows = trained.rows(batch)
        if options.limit_mb:
            peak = peak_bytes(partial(trained.update, rows), [*trained.states(), *rows])
            tries.append((batch, peak, peak <= limit_bytes))
        else:
            tries.append((batch, 0, fits_on_gpu(partial(trained.update, rows))))
        return tries[-1][2]

    found = largest_batch(fits, options.most)
    predicted = largest_batch(
        lambda batch: predicted_bytes(options, batch, overhead_bytes) <= limit_bytes, options.most
    )
    result = Result(limit_bytes, tries, found, predicted)
    return result.verify() if options.limit_mb else result


class Trained:
    """A model after its first update, so that AdamW has its states."""

    def __init__(self, options: Options, device: torch.device) -> None:
        self.training, self.device = options.training(), device
        self.model = self.training.build(device)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), fused=True)
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
        self.optimizer.zero_grad()

    def states(self) -> list[Tensor]:
        """Weights and AdamW's states."""
        kept = [value for state in self.optimizer.state.values() for value in state.values()]
        return [*self.model.parameters(), *kept]


def predicted_bytes(options: Options, batch: int, overhead_bytes: int = 0) -> int:
    """The theory's peak of the same update."""
    job = Job(
        options.training().shape(), RECIPE, Layout(micro_batch=batch), sequence=options.sequence
    )
    moments = memory_moments(job, overhead_bytes=overhead_bytes)
    return max(bill.total_bytes for bill in moments.values())
