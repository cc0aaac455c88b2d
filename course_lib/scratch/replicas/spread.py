"""One model over several devices of one rank: naive model parallelism.

Only one device works at a time; the gain is room for a larger model.
DistributedDataParallel around it: Li et al. 2020, arXiv:2006.15704,
section 4.1, where it is called a multi-device module.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from course_lib.scratch.gpt import GPT


class Spread(nn.Module):
    """`model` with its blocks in equal runs on `devices`.

    Embedding and head share a weight, so both are on the first device.
    """

    def __init__(
        self, model: GPT, devices: Sequence[torch.device | str]
    ) -> None:
        super().__init__()
        layers = len(model.blocks)
        if layers < len(devices):
            raise ValueError(
                f"devices are {len(devices)}, more than the model's {layers} "
                "layers: give each device at least one layer"
            )
        self.first = devices[0]
        self.places = [
            devices[n * len(devices) // layers] for n in range(layers)
        ]
        self.model = model.to(self.first)
        for block, place in zip(model.blocks, self.places, strict=True):
            block.to(place)

    def forward(self, tokens: Tensor) -> Tensor:  # (batch, sequence)
        model, home = self.model, tokens.device
        tokens = tokens.to(self.first)
        numbers = torch.arange(tokens.shape[1], device=self.first)
        # (batch, sequence, hidden)
        x = model.embedding(tokens) + model.positions(numbers)
        for block, place in zip(model.blocks, self.places, strict=True):
            x = block(x.to(place))
        return model.head(model.norm(x.to(self.first))).to(home)
