"""Clusters: how many accelerators, and the links between them."""

from dataclasses import dataclass

from course_lib.checked import checked
from course_lib.theory.inputs.hardware import Accelerator, Link
from course_lib.validation import DERIVED, derive, fraction, number, whole


@checked
@dataclass(frozen=True)
class Cluster:
    """`nodes` machines with `gpus_per_node` accelerators.

    `inside`, `between` and `matmul_efficiency` are the accelerator's own unless they are given.

    `matmul_efficiency`: part of the peak that large matmuls reach. `gpu_hour_usd`: price of one
    accelerator for an hour; 2 USD is what DeepSeek-V3 (arXiv:2412.19437, table 1) assumes.
    Raises ValueError for several nodes without a link between them.
    """

    accelerator: Accelerator
    nodes: int = 1
    gpus_per_node: int = 8
    inside: Link = DERIVED
    between: Link | None = None
    matmul_efficiency: float = DERIVED
    gpu_hour_usd: float = 2.0

    def __post_init__(self) -> None:
        whole("nodes", self.nodes)
        whole("gpus_per_node", self.gpus_per_node)
        chip = self.accelerator
        derive(self, inside=chip.inside, between=chip.between)
        derive(self, matmul_efficiency=chip.matmul_efficiency)
        fraction("matmul_efficiency", self.matmul_efficiency)
        number("gpu_hour_usd", self.gpu_hour_usd, least=0)
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
        """What one accelerator computes in large matmuls: peak × matmul_efficiency."""
        return self.accelerator.peak_flop_per_s * self.matmul_efficiency

    def link(self, group: int, stride: int = 1) -> Link:
        """The slowest link inside every group of ranks r, r + stride, … of `group` members.

        `inside` when all such groups lie within a node: group × stride divides gpus_per_node, or
        there is one node only. Raises ValueError for a group larger than the cluster.
        """
        whole("group", group)
        whole("stride", stride)
        if group > 1 and group * stride > self.world:
            raise ValueError(
                f"group {group} with stride {stride} needs {group * stride} accelerators and the "
                f"cluster has {self.world}: take a smaller group or more nodes"
            )
        within = group == 1 or self.nodes == 1 or self.gpus_per_node % (group * stride) == 0
        return self.inside if within or self.between is None else self.between

    def explain(self) -> str:
        """The cluster in one line, and the data sheet of its accelerator."""
        price = f"{self.gpu_hour_usd:g} USD per accelerator and hour"
        size = f"{self.nodes} nodes × {self.gpus_per_node} = {self.world} accelerators, {price}"
        links = f"links: {self.inside.explain()}"
        if self.between is not None:
            links += f"; {self.between.explain()}"
        reached = f"matmuls reach {self.matmul_flop_per_s / 1e12:.0f} TFLOP/s"
        return "\n".join([size, links, reached, self.accelerator.explain()])
