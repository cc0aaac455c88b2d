"""Results of theory and of demos in, matplotlib figures out; no pyplot, no shared state."""

from course_lib.figures.accumulation import batch_cost, window
from course_lib.figures.activations import activation_terms
from course_lib.figures.agents import nodes_and_ranks
from course_lib.figures.batches import one_batch
from course_lib.figures.buckets import bucket_timeline
from course_lib.figures.buffers import two_buffers
from course_lib.figures.built import built
from course_lib.figures.command_map import command_map
from course_lib.figures.course_map import course_map
from course_lib.figures.curves import loss
from course_lib.figures.cut_unit import cut_unit
from course_lib.figures.economics import token_costs
from course_lib.figures.event_order import event_order
from course_lib.figures.experts import expert_bars
from course_lib.figures.four_families import families
from course_lib.figures.gathering import gather_memory, measured_memory
from course_lib.figures.intuition import guesses
from course_lib.figures.late import late_gradients
from course_lib.figures.memory import consumers
from course_lib.figures.meshes import rank_mesh
from course_lib.figures.meters import meters
from course_lib.figures.one_slow_link import slow_ring
from course_lib.figures.passes import memory_of_passes
from course_lib.figures.picture import Picture
from course_lib.figures.plans import ranked_layouts
from course_lib.figures.rdma_paths import rdma_paths
from course_lib.figures.reach import tp_reach
from course_lib.figures.recovery import requeue_timeline
from course_lib.figures.resharding import resharded
from course_lib.figures.ring_or_tree import collective_times
from course_lib.figures.roofline import on_roofline
from course_lib.figures.samples import samples_by_rank
from course_lib.figures.saving import wasted_time
from course_lib.figures.servers import served_updates
from course_lib.figures.sharing import shared_rates
from course_lib.figures.sheet import Sheet
from course_lib.figures.spans import who_did_what
from course_lib.figures.timeline import timeline
from course_lib.figures.trace import overlap
from course_lib.figures.zero import stored_by_version, who_stores_what

__all__ = [
    "Picture",
    "Sheet",
    "activation_terms",
    "batch_cost",
    "bucket_timeline",
    "built",
    "collective_times",
    "command_map",
    "consumers",
    "course_map",
    "cut_unit",
    "event_order",
    "expert_bars",
    "families",
    "gather_memory",
    "guesses",
    "late_gradients",
    "loss",
    "measured_memory",
    "memory_of_passes",
    "meters",
    "nodes_and_ranks",
    "on_roofline",
    "one_batch",
    "overlap",
    "rank_mesh",
    "ranked_layouts",
    "rdma_paths",
    "requeue_timeline",
    "resharded",
    "samples_by_rank",
    "served_updates",
    "shared_rates",
    "slow_ring",
    "stored_by_version",
    "timeline",
    "token_costs",
    "tp_reach",
    "two_buffers",
    "wasted_time",
    "who_did_what",
    "who_stores_what",
    "window",
]
