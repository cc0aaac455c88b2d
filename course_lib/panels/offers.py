"""What several panels offer: models, links, sizes of GPU memory."""

from course_lib.theory.inputs.hardware import Link
from course_lib.theory.inputs.models import MODELS
from course_lib.theory.inputs.units import GB

DENSE = [name for name, shape in MODELS.items() if not shape.experts]

# As the data sheets print them, read as 10^9 bytes, the smaller of the two readings. PyTorch
# reports about 6 % more on an A100 or H100 (theory.inputs.hardware): left for what is no tensor.
GPU_MEMORY_BYTES = {
    "RTX 4090 24 GB": 24 * GB,  # NVIDIA Ada architecture whitepaper, appendix A
    "A100 40 GB": 40 * GB,  # NVIDIA A100 data sheet
    "A100, H100 80 GB": 80 * GB,  # NVIDIA A100 and H100 data sheets
    "H200 141 GB": 141 * GB,  # NVIDIA H200 data sheet
}


def ethernet(gbit: int, latency_s: float = 50e-6) -> Link:
    """An Ethernet of so many Gb/s; its latency is assumed, for comparison."""
    return Link(f"Ethernet {gbit} Gb/s", gbit * 1e9 / 8, latency_s)


def by_name(*links: Link) -> dict[str, Link]:
    """Links as a control lists them."""
    return {link.name: link for link in links}
