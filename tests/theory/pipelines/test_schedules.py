"""The orders of schedules against those that torch itself runs."""

import pytest
from every import every
from probes import Given, Probe

from course_lib.theory.pipelines import schedules
from course_lib.theory.pipelines.schedules import schedule


def _torch_order(actions, stages):
    return [
        (action.computation_type.value, action.microbatch_index, action.stage_index // stages)
        for action in actions
        if action is not None and action.computation_type.value in ("F", "B", "I", "W")
    ]


def _our_order(name, stage, stages, micro_batches, virtual_stages=1):
    plan = schedule(name, stages, micro_batches, virtual_stages)
    return [(work.kind, work.micro_batch, work.chunk) for work in plan.orders[stage]]


@pytest.mark.torch_internals
@every(("stages", "rounds", "virtual"), [(4, 2, 2), (3, 4, 3), (8, 1, 2)])
def test_interleaved_is_torchs_order(stages, rounds, virtual):
    torch_schedules = pytest.importorskip("torch.distributed.pipelining.schedules")
    settings_of_torch = _Sizes(virtual, stages, stages, stages * rounds)
    for rank in range(stages):
        theirs = torch_schedules.ScheduleInterleaved1F1B._calculate_single_rank_operations(
            settings_of_torch, rank
        )
        ours = _our_order("interleaved", rank, stages, stages * rounds, virtual)
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


class _Sizes:
    """The attributes that torch's order functions read from a schedule object."""

    def __init__(self, local, group, per_round, micro_batches):
        self.n_local_stages, self.pp_group_size = local, group
        self._num_stages, self._n_microbatches = group, micro_batches
        self.microbatches_per_round = per_round


ORDER = {"stage": 1, "stages": 4, "micro_batches": 8}
OTHER_ORDER = {"stage": 0, "stages": 8, "micro_batches": 16}
PLANS = [schedule("dualpipe", 4, 8), schedule("1f1b", 2, 4)]
# Orders have one signature; these two are the same on every stage of any pipeline.
SAME_ON_ALL_STAGES = ("stage", "stages")
PROBES = {
    "schedule": Probe(
        schedule,
        {"name": "gpipe", "stages": 4, "micro_batches": 8, "virtual_stages": 1},
        {
            "name": "1f1b",
            "stages": 2,
            "micro_batches": 4,
            "virtual_stages": Given(3, {"name": "interleaved"}, before=2),
        },
        see=lambda plan: plan.orders,
    ),
    "naive_order": Probe(schedules.naive_order, ORDER, OTHER_ORDER, silent=SAME_ON_ALL_STAGES),
    "gpipe_order": Probe(schedules.gpipe_order, ORDER, OTHER_ORDER, silent=SAME_ON_ALL_STAGES),
    "one_f_one_b_order": Probe(schedules.one_f_one_b_order, ORDER, OTHER_ORDER),
    "interleaved_order": Probe(
        schedules.interleaved_order,
        ORDER | {"virtual_stages": 2},
        OTHER_ORDER | {"virtual_stages": 3},
    ),
    "zb1p_order": Probe(schedules.zb1p_order, ORDER, OTHER_ORDER),
    "dualpipe_order": Probe(
        schedules.dualpipe_order,
        ORDER | {"micro_batches": 16},
        OTHER_ORDER | {"micro_batches": 20},
    ),
}
RECORDS = {"Pass": [one for order in PLANS[0].orders for one in order], "Schedule": PLANS}
