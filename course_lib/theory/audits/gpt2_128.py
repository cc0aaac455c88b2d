"""Audit B: the largest batches of GPT-2 on two cards of 24 GB, as Hugging Face published them."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated

from course_lib.checked import Count, Positive, check_public
from course_lib.theory.audits.claim import Audit, Claim
from course_lib.theory.inputs import MODELS, RECIPES, Job, Layout, TransformerShape
from course_lib.theory.inputs.units import GIB
from course_lib.theory.memory.peak import memory_moments

SOURCE = "Hugging Face, pytorch-fsdp.md, April 2022, tables 1 and 2 (github.com/huggingface/blog)"
CARD_BYTES = 23.65 * GIB  # usable memory of the article's Titan RTX
# Measured in section 9.7: an unfused GELU keeps 48 bytes more than a fused one for each element of
# a layer's input, and `outputs` keeps keys, values and logits alive.
FORMULA_BYTES, VIEW_BYTES = 48, 12
_MOST = 1000  # samples
_PUBLISHED = {"DDP": 7, "SHARD_GRAD_OP": 11, "FULL_SHARD": 15, "offload": 22}
_WAYS: Mapping[str, Mapping[str, int | bool]] = {
    "DDP": {"zero_stage": 0},
    "SHARD_GRAD_OP": {"zero_stage": 3, "reshard": False},
    "FULL_SHARD": {"zero_stage": 3},
    "offload": {"zero_stage": 3},
}


@dataclass(frozen=True)
class Program:
    """A training program in fp32 with AdamW on two cards, in samples of `sequence` tokens.

    `written_out`: True keeps what the article's program keeps, the tensors of a GELU of eight
    operations and the model's `outputs`; False keeps only what the backward pass needs.
    """

    shape: TransformerShape
    sequence: Count = 128
    written_out: bool = True
    card_bytes: Positive = CARD_BYTES

    def __post_init__(self) -> None:
        self.shape.check_sequence(self.sequence)

    def largest_batch(self, way: Annotated[str, _WAYS]) -> int:
        """The largest micro-batch per card that fits in memory, in samples, at most 1,000.

        `way`: "DDP", "SHARD_GRAD_OP", "FULL_SHARD", or "offload", which is FULL_SHARD with all
        model states in host memory.
        """
        layout = Layout(dp=2, **_WAYS[way])  # type: ignore[arg-type]
        fits, too_many = 0, _MOST + 1
        while too_many - fits > 1:
            middle = (fits + too_many) // 2
            need = self._needed_bytes(replace(layout, micro_batch=middle), way == "offload")
            fits, too_many = (middle, too_many) if need <= self.card_bytes else (fits, middle)
        return fits

    def table(self) -> dict[str, int]:
        """The largest batch for each strategy: DDP, and the three of FSDP."""
        return {way: self.largest_batch(way) for way in _WAYS}

    def _needed_bytes(self, layout: Layout, offload: bool) -> float:
        """Peak bytes: the larger of the end of the forward pass and the moments after it."""
        job = Job(self.shape, _RECIPE, layout, sequence=self.sequence)
        moments = memory_moments(job)
        loss, tokens = moments["loss"], layout.micro_batch * self.sequence
        numbers = self.shape.hidden * self.shape.layers
        kept = self.written_out * FORMULA_BYTES * numbers * tokens
        outputs = self.written_out * (VIEW_BYTES * numbers + 4 * self.shape.vocab) * tokens
        forward = loss.total_bytes - loss.temporary_bytes + 2 * outputs
        later = max(bill.total_bytes for bill in moments.values()) + outputs
        return max(forward, later) + kept - offload * loss.model_states_bytes


_RECIPE = replace(RECIPES["fp32-16"], attention="standard", dropout=True, loss="eager")


def gpt2_128() -> Audit:
    """The audit of the article: its claims about GPT-2 Large and XL."""
    large, xl = MODELS["gpt2-774m"], MODELS["gpt2-1.5b"]
    said_12, said_12_xl = Program(large, 12, False), Program(xl, 12, False)
    ran, ran_xl = Program(large), Program(xl)
    kept = "128 tokens, and all that the program keeps"
    nothing = "16 bytes for each of 1.56 billion parameters in fp32 leave nothing"
    between = "128 tokens; between 5 and 6 samples lie 20 %"
    rows = [
        (f"Large, {way}, block size 12: at most {said}", said, way, said_12, ran, kept, 0.4)
        for way, said in _PUBLISHED.items()
    ]
    rows += [
        ("XL under DDP: out of memory", 0, "DDP", said_12_xl, ran_xl, nothing, 0.05),
        ("XL under FULL_SHARD: 5", 5, "FULL_SHARD", said_12_xl, ran_xl, between, 0.3),
    ]
    parameters = Claim(
        "GPT-2 Large has 762 million parameters",
        762e6,
        None,
        large.parameters().total,
        "762M is the paper's number, the released model is larger",
        within=0.005,
    )
    batches = (
        Claim(words, said, own.largest_batch(way), it.largest_batch(way), why, "samples", within)
        for words, said, way, own, it, why, within in rows
    )
    return Audit(SOURCE, (parameters, *batches))


check_public(globals())
