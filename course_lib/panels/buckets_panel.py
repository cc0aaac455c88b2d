"""The panel of chapter 7: buckets of gradients on the link, behind the backward pass."""

from course_lib.figures.data_parallel import buckets as figure
from course_lib.figures.paper.text import counted
from course_lib.panels.controls import choice, flag, powers_of_two, whole
from course_lib.panels.panel import Panel, View
from course_lib.theory.inputs.hardware import ACCELERATORS, HDR, NDR, NETWORK_LATENCY_S, PCIE4, Link
from course_lib.theory.inputs.models import MODELS
from course_lib.theory.inputs.units import MIB, format_bytes
from course_lib.theory.network.bucket_timeline import ddp_timeline, model_gradients

_LARGEST_GPU_BYTES = max(gpu.memory_bytes for gpu in ACCELERATORS.values())
LINKS = {
    link.name: link
    for link in (
        ACCELERATORS["H100-SXM"].inside,
        NDR,
        HDR,
        PCIE4,
        Link("Ethernet 10 Gb/s", 1.25e9, NETWORK_LATENCY_S),
    )
}


def buckets(
    model: str = "gpt2-124m",
    gpu: str = "A100-SXM-80GB",
    link: str = HDR.name,
    ranks: int = 8,
    tokens: int = 16384,
    bucket_mib: int = 25,
    overlap: bool = True,
) -> Panel:
    """Controls for `ddp_timeline`, whose `BucketTimeline` is the panel's result.

    Gradients are fp32. The first bucket has the same limit as the others, as in torch where a
    program names `bucket_cap_mb`. Raises ValueError for starting values that are not offered.
    """
    # DDP keeps the whole model on each GPU. (And 100,000 buckets would not be drawn in time.)
    whole_on_a_gpu = {
        name: shape
        for name, shape in MODELS.items()
        if not shape.experts and 16 * shape.parameters().total < _LARGEST_GPU_BYTES
    }
    controls = {
        "model": choice("model", model, list(whole_on_a_gpu)),
        "gpu": choice("GPU", gpu, list(ACCELERATORS)),
        "link": choice("link", link, list(LINKS)),
        "ranks": powers_of_two("ranks", ranks, 2, 1024),
        "tokens": powers_of_two("tokens per rank", tokens, 512, 131072),
        "bucket_mib": whole("bucket", bucket_mib, 1, 512, "MiB"),
        "overlap": flag("overlap", overlap),
    }
    return Panel(controls, _view)


def _view(
    model: str, gpu: str, link: str, ranks: int, tokens: int, bucket_mib: int, overlap: bool
) -> View:
    cap, wire = bucket_mib * MIB, LINKS[link]
    gradients = model_gradients(MODELS[model], ACCELERATORS[gpu], tokens)
    result = ddp_timeline(gradients, ranks, wire, cap_bytes=cap, first_bytes=cap, overlap=overlap)
    buckets = counted(len(result.exchanges), "bucket")
    rows = (
        ("gradients", f"{format_bytes(result.size_bytes)} in fp32, {buckets}"),
        ("link", wire.explain()),
        ("GPU", f"{gpu}, {tokens:,} tokens per rank"),
        ("weak scaling", f"{ranks} ranks do the work of {ranks * result.efficiency:.1f} GPUs"),
    )
    title = f"{model} on {ranks} ranks, buckets of {bucket_mib} MiB"
    return View(result, rows, lambda: figure.bucket_timeline({title: result}))
