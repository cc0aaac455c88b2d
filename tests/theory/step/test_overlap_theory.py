"""What hiding messages saves and costs: by a published measurement, and for all axes at once."""

from dataclasses import replace

import pytest
from every import every
from probes import Probe, by_name

from course_lib.theory.inputs.cluster import Cluster
from course_lib.theory.inputs.hardware import Link, accelerator
from course_lib.theory.inputs.job import Job
from course_lib.theory.inputs.layout import Layout
from course_lib.theory.inputs.models import model
from course_lib.theory.step.assumptions import Assumptions
from course_lib.theory.step.overlap import Hideable
from course_lib.theory.step.step_time import step_time

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
def test_hiding_saves_what_it_does_not_take(assumptions, saved):
    assert Hideable(3.0, 10.0, 9.0).saved_s(assumptions, "dp", 100.0) == pytest.approx(saved)


def test_nothing_hides_longer_than_there_is_computing():
    assert Hideable(3.0, 10.0, 1.0).saved_s(FREE, "dp", 100.0) == 1.0


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


def test_a_faster_chip_never_makes_a_step_slower():
    """Keys, values, gradients and weights hide behind one window, not each behind all of it."""
    shape, slow = model("llama3.1-8b"), Link("slow", 6.25e9)
    layout = Layout(dp=4, cp=16, zero_stage=3)
    cluster = Cluster(accelerator("H100-SXM"), nodes=8, between=slow)
    job = Job(shape, layout=layout, cluster=cluster, sequence=131072)
    chip = cluster.accelerator
    faster = replace(chip, peak_flop_per_s=2 * chip.peak_flop_per_s)
    step = step_time(job, FREE)
    quick = step_time(replace(job, cluster=replace(cluster, accelerator=faster)), FREE)
    assert quick.total_s <= step.total_s


PROBES = by_name(
    Probe(
        Hideable,
        {"seconds": 3.0, "sent_bytes": 10.0, "window_s": 2.0},
        {"seconds": 1.0, "sent_bytes": 70.0, "window_s": 1.0},
        see=lambda messages: messages.saved_s(Assumptions(), "dp", 100.0),
    ),
    Probe(
        Hideable(3.0, 10.0, 9.0).saved_s,
        {"assumptions": Assumptions(), "axis": "dp", "memory_bytes_per_s": 100.0},
        {"assumptions": FREE, "axis": "tp", "memory_bytes_per_s": 20.0},
    ),
)
