"""The orders of schedules against those that torch itself runs."""

import pytest
from every import every
from probes import Given, Probe, by_name

from course_lib.theory.pipelines import schedules
from course_lib.theory.pipelines.bubble import PassTimes
from course_lib.theory.pipelines.schedules import schedule
from course_lib.theory.pipelines.simulation import simulate


def _torch_order(actions, stages):
    return [
        (action.computation_type.value, action.microbatch_index, action.stage_index // stages)
        for action in actions
        if action is not None and action.computation_type.value in ("F", "B", "I", "W")
    ]


# By our name: torch's class, and (stages, micro-batches, chunks of a stage, group).
TORCHS = {
    # torch, too, has groups of another size where the stages do not divide the micro-batches.
    "interleaved": (
        "ScheduleInterleaved1F1B",
        [(4, 8, 2, 4), (3, 12, 3, 3), (8, 8, 2, 8), (4, 10, 2, 5), (3, 8, 3, 8), (4, 3, 2, 3)],
    ),
    "zb1p": (
        "ScheduleInterleavedZeroBubble",
        [(p, m, 1, None) for p, m in ((4, 4), (4, 9), (6, 6), (2, 5))],
    ),
    # Which torch's authors wrote from the same paper; and from arXiv:2405.15362, whose V it is.
    "zbv": (
        "ScheduleZBVZeroBubble",
        [(p, m, 1, None) for p, m in ((1, 3), (2, 3), (3, 5), (4, 8), (5, 20), (8, 16))],
    ),
    "1f1b": ("Schedule1F1B", [(p, m, 1, None) for p, m in ((4, 8), (5, 7), (2, 3))]),
    "gpipe": ("ScheduleGPipe", [(p, m, 1, None) for p, m in ((4, 8), (5, 7), (2, 3))]),
}


class _Sizes:
    """The attributes that torch's order functions read from a schedule object."""

    def __init__(self, plan, group):
        self.n_local_stages, self.pp_group_size = plan.chunks, plan.stages
        self._num_stages, self._n_microbatches = plan.stages, plan.micro_batches
        self.num_stages = plan.stages * plan.chunks
        self.microbatches_per_round = group or plan.micro_batches


@pytest.mark.torch_internals
@every("name", TORCHS)
def test_orders_are_those_of_torch(name):
    torch_schedules = pytest.importorskip("torch.distributed.pipelining.schedules")
    its, sizes = TORCHS[name]
    for stages, micro_batches, virtual, group in sizes:
        plan = schedule(name, stages, micro_batches, virtual, group=group)
        torchs = getattr(torch_schedules, its)
        if name in ("1f1b", "gpipe"):
            orders = torchs._get_pipeline_order(_Sizes(plan, group))
        else:
            one = torchs._calculate_single_rank_operations
            orders = [one(_Sizes(plan, group), rank) for rank in range(stages)]
        for rank, order in enumerate(plan.orders):
            # torch names the piece of a V, and the number of a stage in all rounds else.
            pieces = plan.pieces[rank] if name == "zbv" else range(virtual)
            ours = [(work.kind, work.micro_batch, pieces[work.chunk]) for work in order]
            theirs = _torch_order(orders[rank], 1 if name == "zbv" else stages)
            if name == "gpipe":  # torch's backward passes are first in, first out: the same bubble
                assert sorted(ours) == sorted(theirs)
            elif (name, rank) != ("1f1b", stages - 1):  # torch's last stage starts at micro-batch 1
                assert ours == theirs, (rank, stages, micro_batches, virtual, group)


@every(("stages", "micro_batches"), [(1, 1), (2, 3), (3, 5), (4, 12), (8, 15), (8, 32)])
def test_zbv_leaves_no_gap_and_holds_p(stages, micro_batches):
    """For equal F, I and W: arXiv:2401.10241, section 6; the memory of 1F1B's first stage."""
    ran = simulate(schedule("zbv", stages, micro_batches), PassTimes())
    one = simulate(schedule("1f1b", stages, micro_batches), PassTimes())
    assert ran.makespan == 3 * micro_batches + (stages - 1) / 2
    for stage, tasks in enumerate(ran.by_stage):
        assert tasks[0].start == stage / 2
        assert tasks[-1].end - tasks[0].start == ran.busy[stage] == 3 * micro_batches
        assert ran.in_flight(stage) == stages == one.in_flight(0)


def test_the_way_of_a_micro_batch():
    """Down the V and back up; from both ends; round and round."""
    plan = schedule("zbv", 3, 5)
    assert plan.homes == (0, 1, 2, 2, 1, 0) and plan.length == 6
    assert plan.pieces == ((0, 5), (1, 4), (2, 3))
    plan = schedule("dualpipe", 4, 8)
    assert plan.homes == (0, 1, 2, 3, 3, 2, 1, 0) and plan.length == 4
    assert schedule("interleaved", 2, 4, 3).homes == (0, 1) * 3


@every("virtual", [1, 2, 3])
@every("stages", [1, 2, 3, 5])
@every("micro_batches", [1, 2, 4, 7, 12])
def test_every_group_that_is_allowed_can_be_run(virtual, stages, micro_batches):
    """And all others would make the stages wait for each other, or soon could."""
    for group in range(1, micro_batches + 1):
        last = micro_batches % group or group
        sizes = ("interleaved", stages, micro_batches, virtual)
        if group < micro_batches and min(group, last) < stages:
            with pytest.raises(ValueError, match="would wait for each other"):
                schedule(*sizes, group=group)
            continue
        ran = simulate(schedule(*sizes, group=group), PassTimes())
        assert len(ran.tasks) == 2 * stages * micro_batches * virtual


ORDER = {"stage": 1, "stages": 4, "micro_batches": 8}
PLANS = [schedule("dualpipe", 4, 8), schedule("1f1b", 2, 4), schedule("zbv", 3, 5)]
# Orders have one signature; these two are the same on every stage of any pipeline.
IN_TURNS = {"name": "interleaved", "virtual_stages": 2}
PROBES = by_name(
    Probe(
        schedule,
        {"name": "gpipe", "stages": 4, "micro_batches": 8, "virtual_stages": 1},
        {
            "virtual_stages": Given(3, {"name": "interleaved"}, before=2),
            "group": Given(8, IN_TURNS),
        },
        see=lambda plan: plan.orders,
    ),
    Probe(
        schedules.stage_order,
        ORDER | {"name": "1f1b"},
        {
            "virtual_stages": Given(3, {"name": "interleaved"}, before=2),
            "group": Given(8, IN_TURNS),
        },
    ),
    Probe(schedules.split_backward, {"order": schedules.one_f_one_b_order(1, 4, 8), "late": 1}),
)
RECORDS = {"Pass": [one for order in PLANS[0].orders for one in order], "Schedule": PLANS}
