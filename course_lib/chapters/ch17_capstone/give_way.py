"""The give-way effect: an FSDP backward pass whose small kernels share the GPU with large ones."""

from dataclasses import replace

from course_lib.checked import checked
from course_lib.theory.step.streams import Task
from course_lib.validation import whole

_MOST_LAYERS = 100


@checked
def sharded_backward(
    layers: int, backward: Task, gather: Task, scatter: Task, *, prepare: Task | None = None
) -> list[Task]:
    """The tasks of a backward pass under FSDP, one of each kind for each layer, last layer first.

    The four tasks are patterns; name, order and `after` are filled in. A layer is computed when it
    has been gathered. Two gathers run ahead; then, for each layer, gradients are prepared (copied
    into one buffer and divided; None: written there in the first place, as in YaFSDP), scattered,
    and the next layer but one is gathered, since only two may be whole. Gathers and scatters share
    a stream: collectives of one group run one after another.
    Source: Khrushchev 2024, "YaFSDP", Medium; Zhao et al. 2023, arXiv:2304.11277, section 3.3.
    Raises ValueError for no layers.
    """
    whole("layers", layers, most=_MOST_LAYERS)
    order = list(range(layers, 0, -1))
    tasks = [replace(gather, name=f"gather {layer}") for layer in order[:2]]
    for place, layer in enumerate(order):
        after = (f"gather {layer}",)
        tasks.append(replace(backward, name=f"backward {layer}", after=after))
        after = (f"backward {layer}",)
        if prepare is not None:
            tasks.append(replace(prepare, name=f"prepare {layer}", after=after))
        tasks.append(replace(scatter, name=f"scatter {layer}", after=after))
        if place + 2 < layers:
            tasks.append(replace(gather, name=f"gather {order[place + 2]}"))
    return tasks
