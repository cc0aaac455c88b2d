"""What hiding messages saves and costs: by a published measurement, and for all axes at once."""

from dataclasses import replace

import probes
import pytest
from every import every
from probes import GUESS, JOB, OFFLOADED, SLOW_LINK, Given, Probe, by_name
from test_step_time import FOUR, H100, LAYOUT, MIXTURE, SHAPE

from course_lib.theory.inputs import Cluster, Job, Layout, Recipe
from course_lib.theory.inputs.hardware import accelerator
from course_lib.theory.memory.states import LocalParameters, local_parameters
from course_lib.theory.network.step_traffic import step_traffic
from course_lib.theory.step.assumptions import Assumptions
from course_lib.theory.step.stage import (
    Hideable,
    accumulation_seconds,
    alike_stages,
    attention_rate,
    head_work,
    layer_rate,
    layer_work,
    stage_busy_time,
    stage_busy_times,
    stage_work,
    update_seconds,
)

FREE = Assumptions(message_touches=0, message_sms=0)


@every(
    ("assumptions", "saved"),
    [
        (FREE, 3.0),  # all of it
        (replace(FREE, overlap={"dp": 0.5}), 1.5),
        (replace(FREE, message_sms=0.25), 2.25),  # a quarter of the SMs for three seconds
        (replace(FREE, message_touches=4), 2.6),  # 4 · 10 bytes at 100 bytes/s
        (replace(FREE, message_touches=4, message_sms=0.25), 2.25),  # the scarcer of both
        (replace(FREE, message_touches=4, overlap={"dp": 0.5}), 1.3),
        (replace(FREE, message_touches=99), 0.0),  # it takes no more than it lasts
    ],
)
def test_hiding_saves_what_it_does_not_take_within_the_computing_there_is(assumptions, saved):
    assert Hideable(3.0, 10.0, 9.0).saved_s(assumptions, "dp", 100.0) == pytest.approx(saved)
    least = Hideable(3.0, 10.0, 1.0).saved_s(assumptions, "dp", 100.0)
    assert least == pytest.approx(min(saved, 1.0))


@every("name", ["A100-SXM-80GB", "H100-SXM"])
def test_a_hidden_second_costs_what_was_measured(name):
    """Lee et al. 2025, arXiv:2507.03114, abstract: computing C, messages M, both at once T = 1.

    C + M = 1.102, and computing is 18.9 % longer beside messages, so C = 1 / 1.189: a second of
    messages takes (1 - C) / M = 0.61 s on average. AMD's cards and slower links are among them.
    """
    chip = accelerator(name)
    rate = 0.8 * chip.inside.bytes_per_s
    saved = Hideable(1.0, rate, 9.0).saved_s(Assumptions(), "dp", chip.memory_bytes_per_s)
    alone = 1 / 1.189
    assert 1 - saved == pytest.approx((1 - alone) / (1.102 - alone), abs=0.2)


# --- stage ---


def test_attention_and_matmuls_each_have_a_rate():
    """Twice as fast a kernel saves half of the time of attention, and none of the matmuls'."""
    job = Job(SHAPE, Recipe(), LAYOUT, FOUR, sequence=2048)
    work, matmuls = stage_work(job, Assumptions(), 0), 0.75 * FOUR.matmul_flop_per_s
    for part in (0.35, 0.7):
        attention_s = work.attention_flop / (part * H100.peak_flop_per_s)
        busy = stage_busy_time(job, Assumptions(attention_efficiency=part), 0)
        assert busy.compute_s == pytest.approx(work.matmul_flop / matmuls + attention_s)
    assert layer_rate(FOUR, Assumptions()) == pytest.approx(0.75 * FOUR.matmul_flop_per_s)
    standard = attention_rate(FOUR, Assumptions(), Recipe(attention="standard"))
    assert standard == layer_rate(FOUR, Assumptions())


def test_messages_that_nothing_hides_are_those_of_the_traffic():
    hidden = dict.fromkeys(("tp", "cp", "ep", "dp", "pp"), 0.0)
    naked = Assumptions(overlap=hidden, inside_efficiency=1.0)
    layout = replace(LAYOUT, zero_stage=1, ep=2)
    job = Job(MIXTURE, Recipe(), layout, FOUR, sequence=2048)
    for stage in range(2):
        time = stage_busy_time(job, naked, stage)
        traffic = step_traffic(job, stage, policy=naked.policy)
        for axis, expected in traffic.waited_by_axis.items():
            assert getattr(time, f"{axis}_s") == pytest.approx(expected)
        assert set(traffic.waited_by_axis) == {"tp", "cp", "ep", "dp", "pp"}


def test_gradients_add_up_once_for_each_micro_batch():
    """10 bytes for each of 10^9 parameters, 100 times, at 1 TB/s; of a shard under ZeRO-3."""
    memory = replace(H100, memory_bytes_per_s=1e12)
    job = Job(SHAPE, Recipe(gradient_buffer=True), Layout(dp=4, accumulation=100), Cluster(memory))
    local = LocalParameters(10**9)
    assert 100 * accumulation_seconds(job, local) == pytest.approx(1.0)
    own = stage_busy_time(job, Assumptions(), 0).accumulation_s
    assert own == pytest.approx(100 * accumulation_seconds(job, local_parameters(SHAPE)))
    single = replace(job, layout=Layout(dp=4))
    assert stage_busy_time(single, Assumptions(), 0).accumulation_s == 0
    sharded = replace(job, layout=Layout(dp=4, accumulation=100, zero_stage=3))
    assert 400 * accumulation_seconds(sharded, local) == pytest.approx(1.0)
    once = replace(job, layout=replace(sharded.layout, reduce="update"))
    assert 100 * accumulation_seconds(once, local) == pytest.approx(1.0)
    fused = replace(job, recipe=Recipe(gradients="fp32", fused_accumulation=True))
    assert accumulation_seconds(fused, local) == 0


@every(
    "layout",
    [
        Layout(pp=7, accumulation=7),
        Layout(pp=5, accumulation=8),  # 2, 2, 1, 1, 1 layers
        Layout(pp=4, accumulation=8, schedule="dualpipe"),
        Layout(pp=3, accumulation=3, schedule="interleaved", virtual_stages=2),
        Layout(pp=3, accumulation=3, stage_layers=(0, 7, 0)),
    ],
)
def test_alike_stages_take_the_same_time(layout):
    """Each stage has the times of the first that is like it, and others have others."""
    job = Job(probes.MIXTURE, Recipe(), layout, FOUR, sequence=512)
    alike = alike_stages(probes.MIXTURE, layout)
    guess = Assumptions()
    every_stage = [stage_busy_time(job, guess, stage) for stage in range(layout.pp)]
    kinds = [replace(times, stage=0) for times in every_stage]
    assert {stage: kinds.count(kinds[stage]) for stage in alike} == alike
    assert sum(alike.values()) == layout.pp
    assert stage_busy_times(job, guess, tuple(alike)) == [every_stage[stage] for stage in alike]


LOCAL = local_parameters(probes.MIXTURE)
ASKED, OTHERWISE = {"job": JOB, "assumptions": GUESS}, {"assumptions": Assumptions(touches=1)}
WITH_TRAFFIC = Assumptions(overlap={"dp": 0.5, "cp": 0.5})
BUSY_LAYOUT = Layout(dp=2, tp=2, pp=2, cp=2, ep=2, zero_stage=1, micro_batch=2, accumulation=4)


PROBES = by_name(
    Probe(
        Hideable,
        {"seconds": 3.0, "sent_bytes": 10.0, "window_s": 2.0},
        {"sent_bytes": 70.0},
        see=lambda messages: messages.saved_s(Assumptions(), "dp", 100.0),
    ),
    Probe(
        Hideable(3.0, 10.0, 9.0).saved_s,
        {"assumptions": Assumptions(), "axis": "dp", "memory_bytes_per_s": 100.0},
        {"assumptions": FREE},
    ),
    Probe(alike_stages, {"shape": probes.MIXTURE, "layout": Layout(pp=4, accumulation=4)}),
    Probe(
        stage_busy_times,
        ASKED | {"stages": (0,)},
        OTHERWISE,
        see=lambda several: [replace(times, stage=0) for times in several],
    ),
    Probe(head_work, ASKED, OTHERWISE, silent=("cluster",)),
    Probe(
        layer_rate,
        {"cluster": probes.CLUSTER, "assumptions": GUESS},
        {"assumptions": Assumptions(layer_efficiency=0.5)},
    ),
    Probe(
        attention_rate,
        {"cluster": probes.CLUSTER, "assumptions": Assumptions(), "recipe": probes.PLAIN},
        {"assumptions": Assumptions(attention_efficiency=0.5)},
    ),
    Probe(
        update_seconds,
        ASKED | {"local": LOCAL},
        {
            "assumptions": Given(
                Assumptions(host_link=SLOW_LINK), {"job": replace(JOB, recipe=OFFLOADED)}
            )
        },
        silent=("shape", "micro_batch", "sequence"),
    ),
)
RECORDS = {
    "StageBusyTime": [
        stage_busy_time(replace(JOB, layout=layout), WITH_TRAFFIC, layout.pp - 1)
        for layout in (Layout(), BUSY_LAYOUT)
    ],
    "Work": [layer_work(replace(JOB, sequence=s), GUESS, 0) for s in (256, 512)],
}
