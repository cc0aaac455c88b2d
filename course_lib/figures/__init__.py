"""Results of theory and of demos in, pictures out, as SVG.

| room | what it shows |
|---|---|
| `paper` | what figures are drawn with: a drawing, colours, words, arrows |
| `engines` | what draws: cells (who holds what), lanes (who did what when), bars, lines |
| `charts` | any names and numbers: a number line, stretches of time, events |
| `compute` | how fast a chip works, what slows it down, and what it costs |
| `data` | samples, micro-batches, batches and epochs |
| `memory` | what is in the memory of one GPU, and when |
| `network` | what is sent between GPUs, over which wires, and how long it takes |
| `layers` | the inside of one layer, whole or shared by several GPUs; experts |
| `pipelines` | the stages of a pipeline: what each does and keeps, and when |
| `data_parallel` | copies of one model, whole (DDP) or in parts (ZeRO, FSDP) |
| `servers` | parameter servers: rows of a table, late gradients, the time of an update |
| `layouts` | which GPU does what: families of parallelism, meshes, plans |
| `cluster` | nodes and their processes, failures, and what is saved against them |
| `course` | the course itself: its map, what you have built, how well you guessed |

A room imports from the rooms above it in this table, never from those below. Readers write
`figures.bars`: every figure is imported here, whichever room it is in.
"""

from course_lib.figures.charts.number_line import number_line
from course_lib.figures.cluster.flight_records import flight_records
from course_lib.figures.cluster.meters import meters
from course_lib.figures.cluster.node_ways import node_ways
from course_lib.figures.cluster.pair_rates import pair_rates
from course_lib.figures.cluster.rank_stacks import rank_stacks
from course_lib.figures.cluster.recovery import requeue_timeline
from course_lib.figures.cluster.saving import wasted_time
from course_lib.figures.cluster.tensor_by_tensor import tensor_by_tensor
from course_lib.figures.compute.audited import audited
from course_lib.figures.compute.economics import token_costs
from course_lib.figures.compute.number_ranges import number_ranges
from course_lib.figures.compute.paid_time import paid_time
from course_lib.figures.compute.products import matrix_products
from course_lib.figures.compute.roofline import on_roofline
from course_lib.figures.compute.sharing import shared_rates
from course_lib.figures.course.built import built
from course_lib.figures.course.course_map import course_map
from course_lib.figures.course.intuition import guesses
from course_lib.figures.data.accumulation import batch_cost, window
from course_lib.figures.data.batch_ladder import batch_ladder
from course_lib.figures.data.batches import one_batch
from course_lib.figures.data.samples import samples_by_rank
from course_lib.figures.data.search import tried_batches
from course_lib.figures.data_parallel.buckets import bucket_timeline
from course_lib.figures.data_parallel.buffers import two_buffers
from course_lib.figures.data_parallel.clipped import clipped
from course_lib.figures.data_parallel.gathering import gather_memory, measured_memory
from course_lib.figures.data_parallel.lanes import two_lanes
from course_lib.figures.data_parallel.shares import cut_rows, cut_unit, halves, shard_groups
from course_lib.figures.data_parallel.zero import stored_by_version, who_stores_what
from course_lib.figures.engines.bars import bars, grouped_bars, stacked_bars
from course_lib.figures.engines.cells import Cell, cells, matrix
from course_lib.figures.engines.lanes import lanes
from course_lib.figures.engines.lines import lines, loss
from course_lib.figures.layers.experts import expert_bars
from course_lib.figures.layers.heads import heads_by_gpu
from course_lib.figures.layers.reach import tp_reach
from course_lib.figures.layers.routing import routing
from course_lib.figures.layouts.block_step import block_step
from course_lib.figures.layouts.plans import ranked_layouts
from course_lib.figures.layouts.rank_block import rank_block
from course_lib.figures.layouts.ranks import families, rank_groups, rank_mesh, same_samples
from course_lib.figures.memory.activations import activation_terms
from course_lib.figures.memory.memory import consumer_bars, consumers
from course_lib.figures.memory.memory_over_time import memory_over_time
from course_lib.figures.memory.recomputed import recomputed_layers
from course_lib.figures.memory.snapshot import snapshot
from course_lib.figures.network.collective_grid import collective_grid
from course_lib.figures.network.one_slow_link import slow_ring
from course_lib.figures.network.ring_or_tree import collective_times
from course_lib.figures.network.who_sends import who_sends
from course_lib.figures.paper.drawing import Drawing
from course_lib.figures.pipelines.layer_paths import layer_paths
from course_lib.figures.pipelines.passes import memory_of_passes
from course_lib.figures.pipelines.timeline import timeline
from course_lib.figures.servers.late import late_gradients
from course_lib.figures.servers.servers import served_updates
from course_lib.figures.servers.used_rows import used_rows
from course_lib.figures.servers.who_asks_whom import who_asks_whom
