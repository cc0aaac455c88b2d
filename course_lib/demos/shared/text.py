"""The training text that ships with the course, cut into windows of characters."""

from collections.abc import Iterable
from functools import cache
from importlib.resources import files

import torch
from torch import Tensor
from torch.utils.data import Dataset

VOCAB = 128  # ASCII: a character's code is its token id


@cache
def load_text() -> Tensor:
    """All characters of "The Printers of Low Harbour" as token ids, int64."""
    text = files("course_lib.data").joinpath("tale.txt").read_bytes()
    return torch.frombuffer(bytearray(text), dtype=torch.uint8).long()


class Windows(Dataset[tuple[Tensor, Tensor]]):
    """Non-overlapping windows of `sequence` characters; labels are shifted by one."""

    def __init__(self, sequence: int) -> None:
        self.text, self.sequence = load_text(), sequence

    def __len__(self) -> int:
        return (len(self.text) - 1) // self.sequence

    def __getitem__(self, number: int) -> tuple[Tensor, Tensor]:
        if not 0 <= number < len(self):
            raise IndexError(f"window {number} is outside 0 to {len(self) - 1}: take one of those")
        start = number * self.sequence
        piece = self.text[start : start + self.sequence + 1]
        return piece[:-1], piece[1:]

    def batch(self, numbers: Iterable[int]) -> tuple[Tensor, Tensor]:
        """The inputs and the labels of several windows, each (windows, sequence)."""
        inputs, labels = zip(*[self[number] for number in numbers], strict=True)
        return torch.stack(inputs), torch.stack(labels)
