"""SVG figures of results from theory and demos.

| part | contents |
|---|---|
| `paper` | drawing primitives: a drawing, colours, text, arrows |
| `engines` | chart types: cells (who holds what), lanes (who did what when), bars, lines |
| `batches` | samples, micro-batches, batches and epochs |
| `memory` | the memory of one GPU, by consumer and over time |
| `ranks` | meshes and groups of ranks, their shards, messages and timelines |
| `plans` | the fastest layouts of a plan |
| `learner` | what a learner predicted, guessed and built |

`paper` and `engines` are packages, the others are modules. Each imports from those above it in
this table, never from those below. Readers write `figures.bars`: every figure is imported here.
Figures of a single chapter are in that chapter's own `figures.py`.
"""

from course_lib.figures.batches import one_batch
from course_lib.figures.engines.bars import bars, grouped_bars, stacked_bars
from course_lib.figures.engines.cells import Cell, cells, matrix
from course_lib.figures.engines.lanes import lanes
from course_lib.figures.engines.lines import lines, loss
from course_lib.figures.learner import built, guesses, number_line
from course_lib.figures.memory import consumer_bars, memory_over_time
from course_lib.figures.paper.drawing import Drawing
from course_lib.figures.plans import ranked_layouts
from course_lib.figures.ranks import (
    cut_unit,
    rank_groups,
    rank_mesh,
    stored_by_version,
    timeline,
    two_lanes,
    who_asks_whom,
    who_sends,
)
