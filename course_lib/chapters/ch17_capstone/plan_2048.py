"""Audit A: the study notes' plan for LLaMA-2 70B on 2048 cards, one layer on each of 80 stages."""

from dataclasses import dataclass
from math import ceil

from course_lib.checked import checked
from course_lib.theory.audits.claim import Audit, Claim
from course_lib.theory.compute.flops import six_nd
from course_lib.theory.inputs.hardware import ACCELERATORS, Accelerator
from course_lib.theory.inputs.layout import Layout
from course_lib.theory.inputs.models import MODELS
from course_lib.theory.network import collectives
from course_lib.theory.pipelines.bubble import bubble_over_ideal
from course_lib.validation import number, whole

SOURCE = "GPU算力评估, study notes on training and inference (cited as 004)"
_LLAMA = MODELS["llama2-70b"]
# "4M tokens" (github.com/meta-llama/llama, MODEL_CARD.md), read as 1024 of its sequences.
_LLAMA_BATCH_TOKENS = 1024 * 4096
_NOTES_FLOP_PER_S = 330e12
# Of a layer, for each token and number of h: all, 10 + 24, as the notes count; its input in bf16.
_KEPT_BYTES, _INPUT_BYTES = 34, 2


@checked
@dataclass(frozen=True)
class NotesPlan:
    """What the notes choose: cards, stages of one layer, and micro-batches of so many sequences."""

    chip: Accelerator = ACCELERATORS["RTX4090"]
    cards: int = 2048
    stages: int = 80
    micro_batch: int = 8
    sequence: int = 4096

    def __post_init__(self) -> None:
        whole("cards", self.cards, most=10**7)
        whole("stages", self.stages, most=1024)
        whole("micro_batch", self.micro_batch, most=10**6)
        whole("sequence", self.sequence, most=10**7)

    @property
    def replicas(self) -> float:
        """Copies of the model, and partners of a gradient: cards / stages, whole or not."""
        return self.cards / self.stages

    @property
    def layer_s(self) -> float:
        """Seconds of a micro-batch in a layer of exactly its size, at the chip's own peak."""
        return six_nd(_LLAMA.layer_parameters(1).total, self._tokens) / self.chip.peak_flop_per_s

    @property
    def update_s(self) -> float:
        """Seconds of an update with as many micro-batches as stages, bubble and all."""
        ideal = self.stages * self.layer_s
        return ideal * (1 + bubble_over_ideal(self.stages, self.stages))

    @property
    def held(self) -> float:
        """Activations on the first stage under 1F1B over those of the model, one micro-batch."""
        layout = Layout(pp=self.stages, accumulation=2 * self.stages)
        return layout.in_flight(0)[0] / self.stages

    @property
    def batch_tokens(self) -> float:
        """Tokens of an update with as many micro-batches as stages: cards · micro-batch · s."""
        return self.cards * self._tokens

    @property
    def _tokens(self) -> int:
        return self.micro_batch * self.sequence


@checked
def plan_2048(plan: NotesPlan | None = None) -> Audit:
    """The claims of the notes, in their order; `plan` None: the notes' own choices and card."""
    plan = plan or NotesPlan()
    return Audit(SOURCE, (*_memory(plan), *_time(plan), *_batch(plan)))


def _memory(plan: NotesPlan) -> tuple[Claim, ...]:
    stages, layers = plan.stages, _LLAMA.layers
    return (
        Claim(
            "80 stages keep 160 times the activations",
            160,
            2 * stages,
            plan.held,
            "1F1B keeps p micro-batches of L/p layers, whatever p is",
            "times",
        ),
        Claim(
            "with 8 groups of 10 layers still 16 times",
            16,
            2 * stages / 10,
            plan.held * _INPUT_BYTES / _KEPT_BYTES + 1 / stages,
            "a stage keeps its layer's input for p micro-batches, and one layer is whole at a time",
            "times",
        ),
        Claim(
            "full recomputation: 3240 layers instead of 80, 40 times the work",
            40,
            layers * (layers + 1) / 2 / layers,
            six_nd(1, 1, "full") / six_nd(1, 1),
            "each layer keeps its own input, and is computed once more",
            "times",
        ),
        Claim(
            "1850 GB need 78 cards of 24 GB",
            78,
            ceil(1850 / 24),
            8 * ceil(1850e9 / plan.chip.memory_bytes / 8),
            "a lower bound, here in whole nodes of 8; a plan names its degrees",
            "cards",
        ),
    )


def _time(plan: NotesPlan) -> tuple[Claim, ...]:
    chip = plan.chip
    notes_layer_s = six_nd(1e9, 8 * 4096) / _NOTES_FLOP_PER_S
    exchange = collectives.sent_bytes("all-reduce", 4 * _LLAMA.layer_parameters(1).total, 2)
    return (
        Claim(
            "a micro-batch takes 0.6 s in a layer",
            0.6,
            notes_layer_s,
            plan.layer_s,
            f"0.856 billion parameters at {chip.peak_flop_per_s / 1e12:g} TFLOP/s",
            "s",
        ),
        Claim(
            "a training step takes 48 s",
            48,
            80 * notes_layer_s,
            plan.update_s,
            "the peak, the layer's size, and a bubble as long as the work",
            "s",
        ),
        Claim(
            "4 GB of gradients travel in 0.12 s",
            0.12,
            4e9 / 32e9,
            exchange / chip.inside.bytes_per_s,
            f"3.42 GB over {chip.inside.name}, one way",
            "s",
            within=0.1,
        ),
        Claim(
            "with 80 micro-batches 80 stages are full",
            1.0,
            None,
            1 / (1 + bubble_over_ideal(plan.stages, plan.stages)),
            "80 micro-batches in 80 stages: 79 of 159 slots are bubble",
            "of the time",
        ),
    )


def _batch(plan: NotesPlan) -> tuple[Claim, ...]:
    return (
        Claim(
            "2048 cards exchange gradients with each other",
            2048,
            plan.cards,
            plan.replicas,
            "only copies of the same layer do, and 0.6 of a copy is none",
            "cards",
        ),
        Claim(
            "the batch is 16384 sequences",
            16384,
            plan.cards * plan.micro_batch,
            plan.replicas * plan.stages * plan.micro_batch,
            "copies · micro-batches · their size, with as many micro-batches as stages",
            "sequences",
        ),
        Claim(
            "such a batch is fairly large",
            1.0,
            None,
            plan.batch_tokens / _LLAMA_BATCH_TOKENS,
            "in tokens, over the 4 million of LLaMA-2's own updates",
            "times",
        ),
    )


@checked
def compared(first: Accelerator, second: Accelerator) -> Claim:
    """The claim that faster memory raises computing over communication, H100 against H200.

    `said` and `own_terms`: the gain of the memory's bandwidth; `found`: the gain of FLOP for each
    byte of the link, which is what the notes' ratio is about.
    """
    memory = second.memory_bytes_per_s / first.memory_bytes_per_s
    per_byte = [it.peak_flop_per_s / it.inside.bytes_per_s for it in (first, second)]
    number("gain", memory, above=0)
    return Claim(
        "faster memory raises the ratio of computing to communication",
        memory,
        memory,
        per_byte[1] / per_byte[0],
        f"peak over link; the memory's ridge goes from {first.ridge_flop_per_byte:.0f} to "
        f"{second.ridge_flop_per_byte:.0f} FLOP per byte",
        "times",
    )
