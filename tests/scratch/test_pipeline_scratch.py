"""The pipeline on real ranks: equal to one process, no deadlock, no more held than in flight."""

import os
import random
import signal

import pytest
import torch
import torch.distributed as dist

from course_lib import launch
from course_lib.measure.gradients import count_held
from course_lib.measure.wire import log_wire
from course_lib.scratch.accumulation import accumulate
from course_lib.scratch.gpt import GPT
from course_lib.scratch.pipeline import Pipeline
from course_lib.scratch.pipeline_stage import Letter, Mail, cut, wires
from course_lib.theory.pipelines.bubble import PassTimes, in_flight
from course_lib.theory.pipelines.schedules import (
    BACKWARD,
    FORWARD,
    Pass,
    Schedule,
    apart,
    schedule,
)
from course_lib.theory.pipelines.simulation import simulate

VOCAB, HIDDEN, SEQUENCE = 11, 16, 8
# Eleven samples: no number of micro-batches below that makes them equal.
SAMPLES = 11
PLANS = [
    *(("naive", 3, 1), ("gpipe", 3, 1), ("1f1b", 5, 1), ("zb1p", 5, 1)),
    *(("interleaved", 3, 2), ("zbv", 7, 1)),
]


def gpt(layers):
    torch.manual_seed(0)
    return GPT(layers, HIDDEN, 2, VOCAB, SEQUENCE)


def samples():
    text = torch.randint(VOCAB, (SAMPLES, SEQUENCE + 1), generator=torch.manual_seed(1))
    return text[:, :-1], text[:, 1:]


def micro_batches(count):
    inputs, labels = samples()
    return list(zip(inputs.tensor_split(count), labels.tensor_split(count), strict=True))


def uneven(pieces):
    """One layer each, and one more in the first piece."""
    return [2, *[1] * (pieces - 1)]


def one_process(layers):
    model = gpt(layers)
    loss = accumulate(model, [samples()])
    return float(loss), {name: p.grad for name, p in model.named_parameters()}


def pipelined(plan, group):
    rank, sizes = launch.init(), uneven(plan.stages * plan.visits)
    parts = cut(gpt(sum(sizes)), sizes, rank.rank, rank.world, plan.way)
    pipeline = Pipeline(parts, plan.orders, group, way=plan.way)
    with log_wire() as log, count_held(parts) as held:
        loss = pipeline.run(micro_batches(plan.micro_batches))
    dist.all_reduce(loss)
    expected, gradients = one_process(sum(sizes))
    gradients["head.weight"] = gradients["embedding.weight"]
    gaps = [
        float((p.grad - gradients[name]).abs().max())
        for part in parts
        for name, p in part.named_parameters()
    ]
    return {
        "gap": max(gaps),
        "loss gap": abs(float(loss) - expected),
        "held": held.most / plan.visits,
        "left": len(pipeline.held),
        "sent": log.sent(),
    }


def all_pipelined(plans):
    group = wires([range(launch.init().world)])
    return [pipelined(plan, group) for plan in plans]


@pytest.mark.parametrize("ranks", [1, 3])
def test_every_schedule_is_equal_to_one_process(ranks):
    """With uneven stages and micro-batches of unequal sizes."""
    plans = [schedule(name, ranks, m, chunks) for name, m, chunks in PLANS]
    for stage, results in enumerate(launch.run(all_pipelined, plans, ranks=ranks)):
        for (name, m, chunks), result in zip(PLANS, results, strict=True):
            assert result["gap"] < 2e-7, (name, stage)
            assert result["loss gap"] < 2e-6, (name, stage)
            held = in_flight(name, ranks, m, stage, virtual_stages=chunks)
            assert (result["held"], result["left"]) == (held, 0), (name, stage)
            if name == "1f1b" and 0 < stage < ranks - 1:  # what each sample is, both ways
                size = 2 * 4 * SAMPLES * SEQUENCE * HIDDEN
                assert result["sent"]["send-recv"] == (2 * m, size)


def test_dualpipe_with_two_copies_is_one_process():
    """Each rank has two parts; the copies' gradients are summed, and passes run one by one."""
    plan = apart(schedule("dualpipe", 4, 8))
    foretold = simulate(plan, PassTimes())
    for stage, (result,) in enumerate(launch.run(all_pipelined, [plan], ranks=4)):
        assert result["gap"] < 2e-7 and result["loss gap"] < 2e-6
        assert (result["held"], result["left"]) == (foretold.in_flight(stage), 0)
        assert "all-reduce" not in result["sent"], "both copies of the tied table are on each end"


def random_plan(seed, stages, chunks, count):
    """Orders in which every pass comes after those that it needs, and nothing else is certain."""
    choose = random.Random(seed)
    pieces, done = stages * chunks, set()
    orders = [[] for _ in range(stages)]
    waiting = {
        (kind, i, piece)
        for kind in (FORWARD, BACKWARD)
        for i in range(count)
        for piece in range(pieces)
    }
    while waiting:
        ready = sorted(work for work in waiting if needs(*work, pieces) <= done)
        kind, i, piece = work = choose.choice(ready)
        orders[piece % stages].append(Pass(kind, i, piece // stages))
        waiting.remove(work)
        done.add(work)
    return Schedule("random", count, tuple(map(tuple, orders)), chunks)


def needs(kind, i, piece, pieces):
    if kind == FORWARD:
        return {(FORWARD, i, piece - 1)} if piece else set()
    after = {(BACKWARD, i, piece + 1)} if piece + 1 < pieces else set()
    return {(FORWARD, i, piece), *after}


def test_any_order_that_can_run_runs():
    plans = [random_plan(seed, 3, chunks=2, count=4) for seed in range(6)]
    for plan in plans:
        simulate(plan, PassTimes())  # raises Deadlock where an order cannot run
    assert len({plan.orders for plan in plans}) == len(plans)
    for results in launch.run(all_pipelined, plans, ranks=3, timeout_s=100):
        assert max(result["gap"] for result in results) < 2e-7


class Killed(Pipeline):
    """One stage is killed in the middle of the pipeline."""

    def backward(self, i, chunk, arrived):
        if (dist.get_rank(), i) == (1, 1):
            os.kill(os.getpid(), signal.SIGKILL)
        return super().backward(i, chunk, arrived)


def break_down(plan):
    rank, sizes = launch.init(), uneven(plan.stages)
    parts = cut(gpt(sum(sizes)), sizes, rank.rank, rank.world)
    Killed(parts, plan.orders, wires([range(rank.world)])).run(micro_batches(4))


def test_a_rank_that_ends_in_mid_pipeline_is_named():
    with pytest.raises(launch.RankFailed, match="rank 1 was killed by SIGKILL"):
        launch.run(break_down, schedule("1f1b", 4, 4), ranks=4, timeout_s=60)


def _letters_of_two_stages():
    """What the trace in Mail's docstring says, step by step, on each of two ranks."""
    up = wires([[0, 1]])
    orders = schedule("1f1b", 2, 2).orders
    mail = Mail(orders, up, lambda i: torch.zeros(1))
    seen = [(mail.coming[1 - mail.stage][0], list(mail.queues[1 - mail.stage]))]
    for work in orders[mail.stage]:
        mail.take(work)
        mail.send(work, torch.ones(1))
        seen.append((f"{work.kind}{work.micro_batch}", sorted(mail.sent), sorted(mail.box)))
    mail.finish()
    return seen, sorted(mail.sent)


def test_the_trace_of_the_letters_in_mails_docstring_is_true():
    (first, left_0), (last, left_1) = launch.run(_letters_of_two_stages, ranks=2)
    assert first == [
        (Letter("B", 0, 0), [Letter("B", 1, 0)]),
        ("F0", [Letter("F", 0, 1)], []),
        ("F1", [Letter("F", 0, 1), Letter("F", 1, 1)], []),
        ("B0", [Letter("F", 1, 1)], []),  # the answer: F 0 has arrived, its tensor is freed
        ("B1", [], []),
    ]
    assert last == [
        (Letter("F", 0, 1), [Letter("F", 1, 1)]),
        ("F0", [], []),
        ("B0", [Letter("B", 0, 0)], []),
        ("F1", [Letter("B", 0, 0)], []),
        ("B1", [Letter("B", 0, 0), Letter("B", 1, 0)], []),
    ]
    assert left_0 == left_1 == []
