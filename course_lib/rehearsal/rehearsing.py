"""One rank of a job that would need up to thousands, on this machine."""

import time
from dataclasses import replace

from course_lib.rehearsal.fake import fake_world
from course_lib.rehearsal.program import Tell, one_update
from course_lib.rehearsal.refusals import check
from course_lib.rehearsal.result import Rehearsal, compared
from course_lib.theory.inputs.job import Job
from course_lib.validation import whole


def rehearse(job: Job, rank: int = 0, tell: Tell = lambda _done, _layers: None) -> Rehearsal:
    """Run one update of rank `rank` of `job` by torch's own code, without the other ranks.

    Collectives return at once, and tensors have sizes and no memory: neither GPUs nor room for the
    model are needed. Every byte that the rank keeps or sends is counted and laid beside the
    theory's, with DTensor's habit of keeping gathered inputs (`Layout.keep_gathered`).

    Rehearsed are `fully_shard` of each layer and of the root, over dp or over `shard_group`;
    `parallelize_module` over tp, with or without sequence parallelism; the loss of a split
    vocabulary; AdamW or SGD. Not rehearsed are activations, the norm of all gradients, and times.
    `tell` hears how many layers are cut, and of how many: torch makes a tensor for each shard of
    each of theirs, which takes minutes with thousands of ranks.
    Raises ValueError for a job that this code cannot run, RuntimeError inside a process group.
    """
    whole("rank", rank, least=0, most=job.layout.world - 1)
    check(job)
    job = replace(job, layout=replace(job.layout, keep_gathered=True))
    start_s = time.perf_counter()
    with fake_world(rank, job.layout.world) as tensors:
        observed = one_update(job, tensors, tell)
    return compared(job, rank, observed, time.perf_counter() - start_s)
