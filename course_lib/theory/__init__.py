"""The arithmetic of training, in rooms: numbers in, frozen dataclasses out, no torch.

| room | what it answers |
|---|---|
| `inputs` | what is trained, how and on what: shape, recipe, layout, cluster, one `Job` |
| `compute` | how many FLOP, how fast a chip can do them, what they cost |
| `pipelines` | in which order the stages of a pipeline work, and how long they wait |
| `memory` | what is in the memory of one GPU |
| `network` | what is sent between GPUs, and how long it takes |
| `step` | how long a step takes; batches and epochs; what a failure costs |
| `stories` | what happens one after another, told as a trace, for figures and steppers |
| `audits` | what published claims come to, on their own terms and on the right ones |
| `planner` | which of all layouts is best; the only room that uses numpy |

A room imports from the rooms above it in this table, never from those below. What a number or a
word may be is said where it is a parameter or a field: `ranks: Count`. The last line of a module,
`check_public(globals())`, lets its public functions and records refuse anything else.
"""
