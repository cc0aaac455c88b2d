"""What the theory says about tensor parallelism, and what torch does otherwise."""

from course_lib.demos.shared.prediction import (
    Sent,
    Stored,
    add_calls,
    predicted_sent,
    predicted_stored,
    traffic,
)
from course_lib.demos.shared.training import Training
from course_lib.theory.inputs.layout import Layout


def scratch_sent(training: Training, layout: Layout) -> Sent:
    """The theory's collectives; under sequence parallelism also one sum of all small gradients.

    Those are the parameters that all ranks hold whole: in each layer two norms and two biases
    after a sum, 6·h; the last norm, 2·h; the positions, s·h.
    """
    sent = predicted_sent(traffic(training, layout), "tp")
    if layout.sequence_parallel and layout.tp > 1:
        layers, hidden, _ = training.size
        add_calls(sent, "all-reduce", 1, 4 * hidden * (6 * layers + 2 + training.sequence))
    return sent


def torch_sent(training: Training, layout: Layout) -> Sent:
    """The theory's collectives, and what torch does otherwise.

    Without sequence parallelism q, k and v each sum the gradient of their common input (see
    `add_separate_qkv`). With it the input is gathered once for the three; each weight and bias of
    a norm has an all-reduce of its own; and the gradient of the positions, s·h, is gathered.
    """
    sent = predicted_sent(traffic(training, layout), "tp")
    layers, hidden, _ = training.size
    if layout.tp > 1 and layout.sequence_parallel:
        norms = 4 * layers + 2
        add_calls(sent, "all-reduce", norms, norms * 4 * hidden)
        add_calls(sent, "all-gather", 1, 4 * training.sequence * hidden)
    elif layout.tp > 1:
        add_separate_qkv(sent, training, layout)
    return sent


def add_separate_qkv(sent: Sent, training: Training, layout: Layout) -> None:
    """Add what separate q, k and v cost: 2 more all-reduces of b·s·h in each layer."""
    layers, hidden, _ = training.size
    size = 4 * layout.micro_batch * training.sequence * hidden
    add_calls(sent, "all-reduce", 2 * layers, 2 * layers * size)


def torch_stored(training: Training, layout: Layout, rank: int) -> Stored:
    """States of a rank under torch, which does not round the vocabulary up.

    Its last ranks have fewer words, and rows of padding in their weights only.
    """
    stored, shape = predicted_stored(training, layout), training.shape()
    words = -(-shape.vocab // layout.tp)
    missing = min(words, max(0, (rank + 1) * words - shape.vocab)) * shape.hidden
    stored["gradients"] -= 4 * missing
    stored["optimizer"] -= 8 * missing
    return stored
