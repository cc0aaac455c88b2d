"""Empirical assumptions about a step: the speed of whole layers, and which messages overlap."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated

from course_lib.checked import Fraction, NotNegative, check_public
from course_lib.theory.compute.flops import MASKS
from course_lib.theory.inputs import Cluster, Link, Recipe
from course_lib.theory.inputs.hardware import ATTENTION_KERNELS, PCIE4
from course_lib.theory.inputs.job import FRAMEWORKS
from course_lib.theory.inputs.units import MB
from course_lib.theory.network.traffic import Axis, CommunicationPolicy, Part
from course_lib.validation import choice

# Fitted together with `inputs.hardware.LAYER_EFFICIENCY`.
TOUCHES = 8
# Megatron-LM's buckets of 40 million fp32 gradients (DistributedDataParallelConfig.bucket_size):
# DDP's 25 MiB would be latency-bound in large clusters.
BUCKETS = CommunicationPolicy(bucket_bytes=160 * MB)
# Measured bus bandwidth of ring all-reduces within a node over the data sheet's: 234.9 of 300 GB/s
# on 8 A100, 367.6 of 450 on 8 H200 (Bekman, Machine Learning Engineering, network).
INSIDE_EFFICIENCY = 0.80
# Communication of tp, ep and pp is exposed; ring attention and the exchange of gradients and
# parameters overlap as far as there is computation to overlap with.
OVERLAP = {"tp": 0.0, "cp": 1.0, "ep": 0.0, "dp": 1.0, "pp": 0.0}
# The cost of overlap to computation (`step.stage`), counted and not fitted. A byte that arrives is
# written, and read again to be sent on; a copy between the message buffer and the layer's memory
# reads and writes it once more.
MESSAGE_TOUCHES = 4
# DeepSeek-V3's communication kernels use 20 of an H800's 132 SMs (arXiv:2412.19437, section 3.2.2).
MESSAGE_SMS = 20 / 132

# The pessimistic case: keys and values are exposed, as in Llama 3's runs of long sequences
# (arXiv:2407.21783, section 3.3.2), and so is half of data parallelism. How much overlaps is
# unknown before the first run; what does has its cost here as well.
CAUTIOUS_OVERLAP = {"cp": 0.0, "dp": 0.5}


@dataclass(frozen=True)
class Assumptions:
    """Empirical assumptions: the speed of whole layers, and which messages overlap computation.

    `layer_efficiency`: FLOP rate of a layer's matmuls over that of the best matmul,
    `cluster.matmul_flop_per_s`; `attention_efficiency`: rate of flash attention over the peak;
    None: the accelerator's value, for `attention_kernel`. `touches`: memory accesses per byte of
    saved activations, in norms, activation functions, softmax and their gradients.
    `inside_efficiency`: fraction of the bandwidth inside a node that collectives reach.
    `message_touches`: memory accesses per byte of a message, and `message_sms`: fraction of the SMs
    that it uses; `step.stage` subtracts both from the computation that hides it. `mask`: pairs that
    attention computes and MFU counts, "causal" or "full"; None: causal under flash attention, which
    skips masked pairs, full under standard attention. `overlap`: largest fraction of an axis' time
    that may be hidden. It hides behind attention for cp, behind one micro-batch for dp (all of them
    if each one communicates: ZeRO-2 and 3), and behind all computation for tp, ep and pp; no
    computation hides two messages at once. An axis that is not named keeps its default.
    `host_link`: link between a GPU and its host, for an offloaded optimizer.
    """

    layer_efficiency: Fraction | None = None
    attention_efficiency: Fraction | None = None
    attention_kernel: Annotated[str, ATTENTION_KERNELS] = "flash-2"
    touches: NotNegative = TOUCHES
    inside_efficiency: Fraction = INSIDE_EFFICIENCY
    message_touches: NotNegative = MESSAGE_TOUCHES
    message_sms: Part = MESSAGE_SMS
    mask: Annotated[str, MASKS] | None = None
    overlap: Mapping[Axis, Part] = field(default_factory=dict)
    policy: CommunicationPolicy = BUCKETS
    host_link: Link = PCIE4

    def __post_init__(self) -> None:
        object.__setattr__(self, "overlap", {**OVERLAP, **self.overlap})

    def reached(self, cluster: Cluster) -> Cluster:
        """The cluster with the inner link reduced to the bandwidth that collectives reach."""
        rate = cluster.inside.bytes_per_s * self.inside_efficiency
        return replace(cluster, inside=replace(cluster.inside, bytes_per_s=rate))

    def explain(self) -> str:
        """One line with all assumptions except FLOP rates."""
        hides = ", ".join(f"{axis} {part:.0%}" for axis, part in self.overlap.items())
        nodes = self.policy.token_nodes
        sent = "each of its experts" if nodes is None else f"each of at most {nodes} nodes"
        return (
            f"each byte of activations passes the memory {self.touches:g} times; links inside a "
            f"node reach {self.inside_efficiency:.0%}; hidden at most: {hides}; a token is sent "
            f"once to {sent}; what hides takes {self.message_touches:g} passes of its bytes "
            f"through the memory, or {self.message_sms:.0%} of the SMs"
        )

    def attention_mask(self, recipe: Recipe) -> str:
        """The attention mask that is computed: `mask`, or the default for the recipe's kernel."""
        return self.mask or ("causal" if recipe.attention == "flash" else "full")

    def flop_conventions(self, recipe: Recipe) -> dict[str, str]:
        """The keyword arguments mask, recompute and attention of the functions in `flops`."""
        mask = self.attention_mask(recipe)
        return {"mask": mask, "recompute": recipe.recompute, "attention": recipe.attention}


OPTIMISTIC = Assumptions()
CAUTIOUS = Assumptions(overlap=CAUTIOUS_OVERLAP)
# DeepSeek-V3's own run (arXiv:2412.19437): DualPipe overlaps expert and pipeline communication with
# the computation of micro-batches in the other direction (section 3.2.1), and a token is sent to
# at most 4 nodes, once to each (section 3.2.2).
DEEPSEEK_V3 = Assumptions(overlap={"ep": 1.0, "pp": 1.0}, policy=replace(BUCKETS, token_nodes=4))


def framework_assumptions(name: str, assumptions: Assumptions = OPTIMISTIC) -> Assumptions:
    """`assumptions` with the attention kernel, overlap and routing of framework `name`."""
    choice("framework", name, FRAMEWORKS)
    framework = FRAMEWORKS[name]
    return replace(
        assumptions,
        attention_kernel=framework.attention_kernel,
        overlap={**assumptions.overlap, **framework.overlap},
        policy=replace(assumptions.policy, token_nodes=framework.token_nodes),
    )


check_public(globals())
