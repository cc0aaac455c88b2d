"""Results of theory and of demos in, pictures out, as SVG.

| part | what it shows |
|---|---|
| `paper` | what figures are drawn with: a drawing, colours, words, arrows |
| `engines` | what draws: cells (who holds what), lanes (who did what when), bars, lines |
| `batches` | samples, micro-batches, batches and epochs |
| `memory` | what is in the memory of one GPU, and when |
| `ranks` | where ranks stand, what each keeps, whom it sends to, and when a stage computes |
| `plans` | the fastest layouts of a plan |
| `learner` | what a learner predicted, guessed and built |

`paper` and `engines` are rooms, the others are modules. Each imports from those above it in this
table, never from those below. Readers write `figures.bars`: every figure is imported here. What
one chapter alone draws is in that chapter's own `figures.py`.
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
