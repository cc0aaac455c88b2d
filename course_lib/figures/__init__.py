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
from course_lib.figures.course.built import built
from course_lib.figures.course.intuition import guesses
from course_lib.figures.data.batches import one_batch
from course_lib.figures.data_parallel.lanes import two_lanes
from course_lib.figures.data_parallel.shares import cut_rows, cut_unit, halves, shard_groups
from course_lib.figures.data_parallel.zero import stored_by_version, who_stores_what
from course_lib.figures.engines.bars import bars, grouped_bars, stacked_bars
from course_lib.figures.engines.cells import Cell, cells, matrix
from course_lib.figures.engines.lanes import lanes
from course_lib.figures.engines.lines import lines, loss
from course_lib.figures.layouts.block_step import block_step
from course_lib.figures.layouts.plans import ranked_layouts
from course_lib.figures.layouts.ranks import families, rank_groups, rank_mesh, same_samples
from course_lib.figures.memory.memory import consumer_bars, consumers
from course_lib.figures.memory.memory_over_time import memory_over_time
from course_lib.figures.network.who_sends import who_sends
from course_lib.figures.paper.drawing import Drawing
from course_lib.figures.pipelines.timeline import timeline
from course_lib.figures.servers.who_asks_whom import who_asks_whom
