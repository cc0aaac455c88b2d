"""One update of a small GPT, written down tensor by tensor: for `course compare`.

Run it with `course demo one_update --ranks 1 --folder one`, then with
`course demo one_update --ranks 2 --technique tp --folder two`, and ask `course compare one two`.
`--fault` breaks the second in one of the ways of real programs.
"""

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from course_lib import comparing, launch
from course_lib.chapters.ch16_cluster_clinic.demos.one_update.faults import FAULTS
from course_lib.chapters.ch16_cluster_clinic.demos.one_update.versions import TECHNIQUES
from course_lib.demos.shared.options import BatchOptions, option, whose_parts
from course_lib.demos.shared.result import Result
from course_lib.scratch.gpt import GPT
from course_lib.validation import fraction

DTYPES = {"fp64": torch.float64, "fp32": torch.float32, "bf16": torch.bfloat16}


@dataclass(frozen=True)
class Options(BatchOptions):
    """What the demo can be asked for."""

    folder: str = option("", "the folder to write to")
    technique: str = option("one", f"one of {', '.join(TECHNIQUES)}", among=TECHNIQUES)
    fault: str = option("none", f"none, or one of {', '.join(FAULTS)}", among=("none", *FAULTS))
    precision: str = option("fp32", f"one of {', '.join(DTYPES)}", among=DTYPES)
    dropout: float = option(0.0, "probability of dropout behind each MLP")
    parts: str = whose_parts()

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.dropout:
            fraction("dropout", self.dropout)
        if self.fault != "none" and self.technique not in FAULTS[self.fault].techniques:
            fits = " or ".join(FAULTS[self.fault].techniques)
            raise ValueError(f"fault {self.fault} is one of {fits}: set technique to that")
        if self.dropout and self.technique not in ("one", "tp"):
            raise ValueError(
                f"dropout {self.dropout} with technique {self.technique} draws other numbers for "
                "each rank's own tokens: take technique one or tp"
            )
        if self.fault == "seed" and not self.dropout:
            raise ValueError("fault seed needs random numbers: set dropout, for example to 0.1")

    def build(self) -> GPT:
        """The whole model, the same on every rank."""
        return self.training().build().to(launch.init().device, DTYPES[self.precision])


def main(options: Options) -> Result:
    """Record one update; nothing is updated."""
    rank = launch.init()
    if not options.folder:
        raise ValueError("folder is empty: say where to write, as in --folder one")
    version = TECHNIQUES[options.technique](options.build, rank, options.parts)
    if options.dropout:
        for name, module in list(version.model.named_modules()):
            if name.endswith(".mlp"):
                module.append(nn.Dropout(options.dropout))
    torch.manual_seed(options.seed)  # of dropout, the same on every rank
    if options.fault != "none":
        FAULTS[options.fault].apply(version)
    batch = options.training().batches(rank.device)[0]
    with comparing.record(version.model, options.folder) as run:
        loss = version.loss(version, batch)
        run.loss(loss)
        loss.backward()
        version.exchange()
    on, folder = "one rank" if rank.world == 1 else f"{rank.world} ranks", Path(options.folder)
    own = float(loss.detach())
    return Result(
        f"{folder}: one update on {on}, loss {own:.6f} on rank 0", loss=own, folder=str(folder)
    )
