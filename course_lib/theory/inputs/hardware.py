"""Accelerators, links and clusters: data-sheet numbers with their sources."""

from dataclasses import dataclass
from math import inf
from typing import Annotated, Any, ClassVar

from course_lib.checked import Count, Fraction, NotNegative, Positive, Text, check_public
from course_lib.theory.inputs.recipe import PRECISION_BYTES
from course_lib.theory.inputs.units import GB, GIB
from course_lib.validation import DERIVED, choice, derive

# NCCL's own latency of one ring step, protocol "Simple": hwLat in src/graph/tuning.cc of
# github.com/NVIDIA/nccl at 01afd20, release 2.7.5. The network's was 9.6 until 2.17; since 2.18
# (2023) it is 14.0. The other two are the same in 2.30.
NVLINK_LATENCY_S = 3.4e-6
PCIE_LATENCY_S = 5.7e-6
NETWORK_LATENCY_S = 9.6e-6

# Fastest measured matmul / peak for chips without a published measurement: that of the H100.
MATMUL_EFFICIENCY = 0.80
# Fitted on A100s, with `step.assumptions.TOUCHES`, to the ten rows of Narayanan et al. 2021,
# arXiv:2104.04473, table 1 (137 to 163 TFLOP/s), so that as many come out too fast as too slow. The
# efficiencies below are fitted the same way; the steps of other papers are then predictions.
LAYER_EFFICIENCY = 0.81
# Llama 3's three rows (arXiv:2407.21783, table 4). Perhaps an H100 lowers its clock under load.
H100_LAYER_EFFICIENCY = 0.75
# torchtitan's runs (benchmarks/README.md) on H100s limited to 500 W instead of 700.
H100_500W_LAYER_EFFICIENCY = 0.60
# FlashAttention-2 on an A100: 50 to 73 % of the peak (Dao 2023, arXiv:2307.08691, abstract).
ATTENTION_EFFICIENCY = 0.60
# The same kernel on an H100: 35 % (Shah et al. 2024, arXiv:2407.08608, abstract).
H100_ATTENTION_EFFICIENCY = 0.35
# Kernels written for the H100, cuDNN's and FlashAttention-3: 484 to 616 of 989 TFLOP/s for causal
# sequences of 2,048 to 16,384 tokens, forward (same paper, figure 5), and less backward.
H100_NEW_ATTENTION_EFFICIENCY = 0.50
# FlashAttention-1 over FlashAttention-2 on an A100: 25 to 40 % (arXiv:2307.08691, abstract).
FIRST_FLASH_OVER_SECOND = 0.33 / ATTENTION_EFFICIENCY
# "new": cuDNN's, which Transformer Engine uses on Hopper GPUs, or FlashAttention-3.
ATTENTION_KERNELS = ("flash-1", "flash-2", "new")


@dataclass(frozen=True)
class Link:
    """A link of one accelerator: bytes per second in ONE direction, and latency per message.

    Data sheets often add up both directions: NVLink4 is "900 GB/s" and sends 450.
    """

    name: Text
    bytes_per_s: Positive
    latency_s: NotNegative = 0.0

    def explain(self) -> str:
        """One line: name, bandwidth and latency."""
        return f"{self.name}: {self.bytes_per_s / 1e9:g} GB/s one way, {self.latency_s * 1e6:g} µs"


@dataclass(frozen=True)
class Accelerator:
    """One chip: dense peak, memory, and its links inside a node and between nodes.

    The peak is that of `number_format`, "fp32", "bf16" or "fp16". `memory_bytes`: memory available
    to programs, for an "80 GB" chip between 80·10^9 and 80·2^30. `matmul_efficiency`: FLOP rate of
    the best measured large matmul over the peak. `layer_efficiency`: rate of the matmuls in whole
    layers over that one. `attention_efficiency`: rate of FlashAttention-2 over the peak, and
    `new_attention_efficiency` that of kernels written for this chip. `between` None: there is no
    usual network, so a cluster must give one.
    """

    BY_NAME: ClassVar[str] = "accelerator({0})"

    name: Text
    peak_flop_per_s: Positive
    memory_bytes: Count
    memory_bytes_per_s: Positive
    inside: Link
    between: Link | None = None
    matmul_efficiency: Fraction = MATMUL_EFFICIENCY
    number_format: Annotated[str, PRECISION_BYTES] = "bf16"
    layer_efficiency: Fraction = LAYER_EFFICIENCY
    attention_efficiency: Fraction = ATTENTION_EFFICIENCY
    new_attention_efficiency: Fraction = ATTENTION_EFFICIENCY

    def __post_init__(self) -> None:
        if self.memory_bytes < GB:
            raise ValueError(
                f"memory_bytes {self.memory_bytes:,} is less than 1 GB, and no accelerator has so "
                "little: give bytes, 80 * GIB for 80 GiB"
            )

    @property
    def element_bytes(self) -> int:
        """Bytes per element in `number_format`."""
        return PRECISION_BYTES[self.number_format]

    @property
    def ridge_flop_per_byte(self) -> float:
        """Arithmetic intensity above which a kernel is compute-bound: peak / memory bandwidth."""
        return ridge(self.peak_flop_per_s, self.memory_bytes_per_s)

    def attainable_flop_per_s(self, flop_per_byte: NotNegative) -> float:
        """The roofline: min(peak, intensity × memory bandwidth)."""
        return min(self.peak_flop_per_s, flop_per_byte * self.memory_bytes_per_s)

    def attention_share(self, kernel: Annotated[str, ATTENTION_KERNELS] = "flash-2") -> float:
        """FLOP rate of an attention kernel as a fraction of the peak."""
        first = self.attention_efficiency * FIRST_FLASH_OVER_SECOND
        others = {"flash-1": first, "new": self.new_attention_efficiency}
        return others.get(kernel, self.attention_efficiency)


def ridge(flop_per_s: Positive, bytes_per_s: Positive) -> float:
    """Ridge point in FLOP per byte, above which compute is the limit, not a memory or a link.

    Source: Williams et al. 2009, "Roofline", doi:10.1145/1498765.1498785.
    """
    return flop_per_s / bytes_per_s


def matmul_intensity(rows: Count, inner: Count, columns: Count, element_bytes: Count = 2) -> float:
    """FLOP per byte of a matmul that reads both matrices and writes the result once.

    2·m·n·k / (bytes·(m·k + k·n + m·n)), with m rows, k inner, n columns.
    """
    moved = rows * inner + inner * columns + rows * columns
    return 2 * rows * inner * columns / (element_bytes * moved)


def ridge_rows(
    inner: Count, columns: Count, flop_per_byte: Positive, element_bytes: Count = 2
) -> float:
    """Rows above which a product with an inner × columns matrix is compute-bound.

    `matmul_intensity` solved for m: bytes·R·k·n / (2·k·n − bytes·R·(k + n)), with R FLOP per byte,
    the chip's ridge. Infinite for a matrix too narrow to be compute-bound at any number of rows.
    """
    moved = element_bytes * flop_per_byte
    left = 2 * inner * columns - moved * (inner + columns)
    return moved * inner * columns / left if left > 0 else inf


PCIE4 = Link("PCIe4 x16", 31.5e9, PCIE_LATENCY_S)
# One 400 Gb/s port per GPU: 50 GB/s. Bekman, Machine Learning Engineering, network.
NDR = Link("InfiniBand NDR 400 Gb/s", 50e9, NETWORK_LATENCY_S)
# One 200 Gb/s port per GPU: 25 GB/s. NVIDIA DGX A100 data sheet.
HDR = Link("InfiniBand HDR 200 Gb/s", 25e9, NETWORK_LATENCY_S)


def _chip(
    name: str, tflops: float, memory_bytes: int, memory_gb_per_s: float, inside: Link, **more: Any
) -> Accelerator:
    return Accelerator(name, tflops * 1e12, memory_bytes, memory_gb_per_s * 1e9, inside, **more)


def _nvlink(generation: int, gb_per_s: float) -> Link:
    return Link(f"NVLink{generation}", gb_per_s * 1e9, NVLINK_LATENCY_S)


_AMPERE = {"between": HDR, "matmul_efficiency": 271.2 / 312}
_HOPPER = {
    "between": NDR,
    "matmul_efficiency": 794.5 / 989.4,
    "layer_efficiency": H100_LAYER_EFFICIENCY,
    "attention_efficiency": H100_ATTENTION_EFFICIENCY,
    "new_attention_efficiency": H100_NEW_ATTENTION_EFFICIENCY,
}
_H100_500W = _HOPPER | {"layer_efficiency": H100_500W_LAYER_EFFICIENCY}
# H200 and B200: not measured in the source, the H100's efficiencies are assumed.
_LATER = _HOPPER | {"matmul_efficiency": MATMUL_EFFICIENCY}

# A GPU's total capacity as PyTorch reports it: in an error on A100s, issue 24 of
# github.com/XLabs-AI/x-flux; in torchtitan's log on an H100, github.com/dudeperf3ct/minicode-llm,
# codellm_pretrain/torch_titan. Other drivers report up to 0.2 GiB more on an A100 (issue 26 of
# github.com/AnjieCheng/NaVILA) and 0.1 less on an H100 (issue 27508 of
# github.com/vllm-project/vllm).
A100_MEMORY_BYTES = int(79.15 * GIB)
H100_MEMORY_BYTES = int(79.18 * GIB)

# For all other chips it is the data sheet's memory, its GB read as 10^9.
# Peaks are dense bf16 with fp32 accumulation, without sparsity. Peaks, memory and links are those
# of Bekman, Machine Learning Engineering (github.com/stas00/ml-engineering, compute/accelerator
# and network), as are the best measured matmuls; other sources are given at the chip.
_CHIPS = (
    _chip("A100-SXM-80GB", 312, A100_MEMORY_BYTES, 2039, _nvlink(3, 300), **_AMPERE),
    _chip("A100-SXM-40GB", 312, 40 * GB, 1555, _nvlink(3, 300), **_AMPERE),
    _chip("H100-SXM", 989.4, H100_MEMORY_BYTES, 3350, _nvlink(4, 450), **_HOPPER),
    # An H100 whose NVLink is cut to 400 GB/s in all, 200 one way (DeepSeek-AI 2025,
    # arXiv:2505.09343, section 4.1), with 400 Gb/s of InfiniBand for each GPU.
    _chip("H800-SXM", 989.4, H100_MEMORY_BYTES, 3350, _nvlink(4, 200), **_HOPPER),
    # github.com/pytorch/torchtitan, benchmarks/llama3_h100_202412_torchtitan.md: HBM2e, 500 W.
    _chip("H100-SXM-500W", 989.4, 96 * GB, 2400, _nvlink(4, 450), **_H100_500W),
    _chip("H200-SXM", 989.4, 141 * GB, 4800, _nvlink(4, 450), **_LATER),
    _chip("B200-SXM", 2250, 180 * GB, 8000, _nvlink(5, 900), **_LATER),
    # NVIDIA Ada whitepaper, appendix A: 330.3 TFLOP/s is fp16 with fp16 accumulation.
    _chip("RTX4090", 165.2, 24 * GB, 1008, PCIE4),
    _chip("L40S", 362, 48 * GB, 864, PCIE4),
    _chip("MI300X", 1307.4, 192 * GB, 5300, Link("xGMI, 7 × 64 GB/s", 448e9, NVLINK_LATENCY_S)),
    # How to Scale Your Model, jax-ml.github.io/scaling-book/tpus: one ICI link, one way.
    _chip("TPUv5p", 459, 95 * GB, 2765, Link("ICI, one link", 90e9, NVLINK_LATENCY_S)),
)

ACCELERATORS = {chip.name: chip for chip in _CHIPS}


def accelerator(name: str) -> Accelerator:
    """The preset accelerator `name`. Raises ValueError with the nearest name for an unknown one."""
    choice("accelerator", name, ACCELERATORS)
    return ACCELERATORS[name]


# --- Clusters: how many accelerators, and the links between them ---


@dataclass(frozen=True)
class Cluster:
    """`nodes` machines with `gpus_per_node` accelerators each.

    `inside`, `between` and `matmul_efficiency` default to those of the accelerator.

    `matmul_efficiency`: fraction of the peak that large matmuls reach. `gpu_hour_usd`: price of one
    accelerator for an hour; 2 USD is what DeepSeek-V3 (arXiv:2412.19437, table 1) assumes.
    Raises ValueError for several nodes without a link between them.
    """

    accelerator: Accelerator
    nodes: Count = 1
    gpus_per_node: Count = 8
    inside: Link = DERIVED
    between: Link | None = None
    matmul_efficiency: Fraction = DERIVED
    gpu_hour_usd: NotNegative = 2.0

    def __post_init__(self) -> None:
        chip = self.accelerator
        derive(self, inside=chip.inside, between=chip.between)
        derive(self, matmul_efficiency=chip.matmul_efficiency)
        if self.nodes > 1 and self.between is None:
            raise ValueError(
                f"nodes {self.nodes} of {self.accelerator.name} have no link between them: "
                "give between=Link(...), or set nodes=1"
            )

    @property
    def world(self) -> int:
        """Number of accelerators: nodes × gpus_per_node."""
        return self.nodes * self.gpus_per_node

    @property
    def matmul_flop_per_s(self) -> float:
        """FLOP/s of one accelerator in large matmuls: peak × matmul_efficiency."""
        return self.accelerator.peak_flop_per_s * self.matmul_efficiency

    def link(self, group: Count, stride: Count = 1) -> Link:
        """The slowest link used by groups of `group` ranks r, r + stride, r + 2·stride, …

        This is `inside` if all such groups lie within a node: group × stride divides gpus_per_node,
        or there is only one node. Raises ValueError for a group larger than the cluster.
        """
        if group > 1 and group * stride > self.world:
            raise ValueError(
                f"group {group} with stride {stride} needs {group * stride} accelerators and the "
                f"cluster has {self.world}: take a smaller group or more nodes"
            )
        within = group == 1 or self.nodes == 1 or self.gpus_per_node % (group * stride) == 0
        return self.inside if within or self.between is None else self.between


check_public(globals())
