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


def _our_order(name, stage, stages, micro_batches, virtual_stages=1, group=None):
    plan = schedule(name, stages, micro_batches, virtual_stages, group=group)
    return [(work.kind, work.micro_batch, work.chunk) for work in plan.orders[stage]]


@pytest.mark.torch_internals
@every(
    ("stages", "rounds", "virtual", "group"),
    [(4, 2, 2, 4), (3, 4, 3, 3), (8, 1, 2, 8), (4, 2, 2, 5), (3, 1, 3, 8), (4, 1, 2, 3)],
)
def test_interleaved_is_torchs_order(stages, rounds, virtual, group):
    """torch, too, has groups of another size where the stages do not divide the micro-batches."""
    torch_schedules = pytest.importorskip("torch.distributed.pipelining.schedules")
    settings_of_torch = _Sizes(virtual, stages, group, group * rounds)
    for rank in range(stages):
        theirs = torch_schedules.ScheduleInterleaved1F1B._calculate_single_rank_operations(
            settings_of_torch, rank
        )
        ours = _our_order("interleaved", rank, stages, group * rounds, virtual, group=group)
        assert ours == _torch_order(theirs, stages)


@pytest.mark.torch_internals
@every(("stages", "micro_batches"), [(4, 4), (4, 9), (6, 6), (2, 5)])
def test_zb1p_is_torchs_order(stages, micro_batches):
    torch_schedules = pytest.importorskip("torch.distributed.pipelining.schedules")
    settings_of_torch = _Sizes(1, stages, micro_batches, micro_batches)
    for rank in range(stages):
        theirs = torch_schedules.ScheduleInterleavedZeroBubble._calculate_single_rank_operations(
            settings_of_torch, rank
        )
        assert _our_order("zb1p", rank, stages, micro_batches) == _torch_order(theirs, stages)


@pytest.mark.torch_internals
@every(("stages", "micro_batches"), [(1, 3), (2, 3), (3, 5), (4, 8), (5, 20), (8, 16)])
def test_zbv_is_torchs_order(stages, micro_batches):
    """Which torch's authors wrote from the same paper; and from arXiv:2405.15362, whose V it is."""
    torch_schedules = pytest.importorskip("torch.distributed.pipelining.schedules")
    settings_of_torch = _Sizes(2, stages, micro_batches, micro_batches)
    settings_of_torch.num_stages = 2 * stages
    plan = schedule("zbv", stages, micro_batches)
    for rank, order in enumerate(plan.orders):
        theirs = torch_schedules.ScheduleZBVZeroBubble._calculate_single_rank_operations(
            settings_of_torch, rank
        )
        ours = [(work.kind, work.micro_batch, plan.pieces[rank][work.chunk]) for work in order]
        assert ours == _torch_order(theirs, 1)


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


def test_a_micro_batch_goes_down_the_v_and_back_up():
    plan = schedule("zbv", 3, 5)
    assert plan.homes == (0, 1, 2, 2, 1, 0) and plan.length == 6
    assert plan.pieces == ((0, 5), (1, 4), (2, 3))


def test_dualpipes_two_ways_are_not_one():
    plan = schedule("dualpipe", 4, 8)
    assert plan.homes == (0, 1, 2, 3, 3, 2, 1, 0) and plan.length == 4
    assert schedule("interleaved", 2, 4, 3).homes == (0, 1) * 3


@pytest.mark.torch_internals
@every(("stages", "micro_batches"), [(4, 8), (5, 7), (2, 3)])
def test_1f1b_and_gpipe_are_torchs_orders(stages, micro_batches):
    torch_schedules = pytest.importorskip("torch.distributed.pipelining.schedules")
    settings_of_torch = _Sizes(1, stages, micro_batches, micro_batches)
    theirs = torch_schedules.Schedule1F1B._get_pipeline_order(settings_of_torch)
    gpipe = torch_schedules.ScheduleGPipe._get_pipeline_order(settings_of_torch)
    for rank in range(stages):
        ours = _our_order("1f1b", rank, stages, micro_batches)
        if rank < stages - 1:  # torch's listing for the last stage starts at micro-batch 1
            assert ours == _torch_order(theirs[rank], stages)
        # torch runs GPipe's backward passes first in, first out: the bubble is the same.
        ours = _our_order("gpipe", rank, stages, micro_batches)
        assert sorted(ours) == sorted(_torch_order(gpipe[rank], stages))


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


class _Sizes:
    """The attributes that torch's order functions read from a schedule object."""

    def __init__(self, local, group, per_round, micro_batches):
        self.n_local_stages, self.pp_group_size = local, group
        self._num_stages, self._n_microbatches = group, micro_batches
        self.microbatches_per_round = per_round


ORDER = {"stage": 1, "stages": 4, "micro_batches": 8}
OTHER_ORDER = {"stage": 0, "stages": 8, "micro_batches": 16}
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
        OTHER_ORDER
        | {
            "name": "gpipe",
            "virtual_stages": Given(3, {"name": "interleaved"}, before=2),
            "group": Given(8, IN_TURNS),
        },
    ),
    Probe(schedules.split_backward, {"order": schedules.one_f_one_b_order(1, 4, 8), "late": 1}),
)
RECORDS = {"Pass": [one for order in PLANS[0].orders for one in order], "Schedule": PLANS}
