"""Panels of chapter 7, in addition to those of the library."""

from course_lib.chapters.ch07_ddp import figures
from course_lib.figures.paper.drawing import counted
from course_lib.panels.controls import DENSE, by_name, choice, ethernet, flag, powers_of_two, whole
from course_lib.panels.panel import View, panel
from course_lib.theory.inputs.hardware import ACCELERATORS, HDR, NDR, NETWORK_LATENCY_S, PCIE4
from course_lib.theory.inputs.models import MODELS
from course_lib.theory.inputs.units import MIB, format_bytes
from course_lib.theory.network.bucket_timeline import ddp_timeline, model_gradients

_LARGEST_GPU_BYTES = max(gpu.memory_bytes for gpu in ACCELERATORS.values())
# DDP keeps the whole model on each GPU. (And drawing 100,000 buckets would take too long.)
_WHOLE_ON_A_GPU = [
    name for name in DENSE if 16 * MODELS[name].parameters().total < _LARGEST_GPU_BYTES
]
_LINKS = by_name(ACCELERATORS["H100-SXM"].inside, NDR, HDR, PCIE4, ethernet(10, NETWORK_LATENCY_S))


@panel
def buckets(
    model: str = choice("model", "gpt2-124m", _WHOLE_ON_A_GPU),
    gpu: str = choice("GPU", "A100-SXM-80GB", list(ACCELERATORS)),
    link: str = choice("link", HDR.name, list(_LINKS)),
    ranks: int = powers_of_two("ranks", 8, 2, 1024),
    tokens: int = powers_of_two("tokens per rank", 16384, 512, 131072),
    bucket_mib: int = whole("bucket", 25, 1, 512, "MiB"),
    overlap: bool = flag("overlap", True),
) -> View:
    """Controls for `ddp_timeline`, whose `BucketTimeline` is the panel's result.

    Gradients are fp32. The first bucket has the same limit as the others, as in torch where a
    program names `bucket_cap_mb`. Raises ValueError for starting values that are not offered.
    """
    cap, wire = bucket_mib * MIB, _LINKS[link]
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
    return View(result, rows, lambda: figures.bucket_timeline({title: result}))
