"""One step under ZeRO: every moment as a real run of `scratch.zero` has it, byte for byte."""

from functools import partial

import pytest
import torch
from probes import Probe
from torch import nn

from course_lib import launch
from course_lib.measure.storages import tensor_bytes
from course_lib.measure.wire import log_wire
from course_lib.scratch.ledger import ledger
from course_lib.scratch.zero.shard import Unit
from course_lib.scratch.zero.stage3 import ShardedUnit, Zero3
from course_lib.scratch.zero.stages import Zero
from course_lib.theory.inputs.layout import Layout
from course_lib.theory.inputs.recipe import MIXED_16
from course_lib.theory.memory.states import model_states
from course_lib.theory.network.collectives import sent_bytes
from course_lib.theory.network.zero import zero_stages
from course_lib.theory.network.zero_steps import zero_steps

WIDTH, LAYERS = 12, 3
PARAMETERS = WIDTH * WIDTH


class Watched:
    """A unit that lets somebody look after each thing that is done with it."""

    def gather(self, *_):
        self.watched("gather", super().gather)

    def free(self, *_):
        self.watched("free", super().free)

    def reduce(self):
        self.watched("reduce", super().reduce)

    def publish(self):
        self.watched("publish", super().publish)

    def watched(self, what, method):
        call = getattr(self, "call", None)  # the recorder's, once there is one
        return call(what, method) if call else method()


class WatchedUnit(Watched, Unit):
    pass


class WatchedShardedUnit(Watched, ShardedUnit):
    pass


class WatchedZero(Zero):
    unit = WatchedUnit


class WatchedZero3(Zero3):
    unit = WatchedShardedUnit


class Recorder:
    """Looks at one rank after each thing that a trainer does."""

    def __init__(self, model, zero, log):
        self.model, self.zero, self.log = model, zero, log
        self.units, self.seen = list(zero.units.values()), []
        for layer, unit in enumerate(self.units):
            # The trainer's own hook, which gathers, comes first.
            model[layer].register_forward_pre_hook(partial(self.forward, layer))
            unit.call = partial(self.call, layer)
            for parameter in unit.parameters:
                parameter.register_post_accumulate_grad_hook(partial(self.backward, layer))

    def call(self, layer, what, method):
        """The method, and a look, unless it does nothing or is a part of another."""
        had = [unit.whole.untyped_storage().nbytes() for unit in self.units]
        if what == "reduce" and self.zero.waiting is not None:
            self.look("backward", layer)
        method()
        has = [unit.whole.untyped_storage().nbytes() for unit in self.units]
        behind_forward = self.seen[-1][:2] == ("forward", layer)
        if (
            what == "reduce"
            or (what == "publish" and self.zero.ranks > 1 and not self.stage_3())
            or (what == "gather" and had != has)
            or (what == "free" and behind_forward)
        ):
            self.look(what, layer)

    def stage_3(self):
        return isinstance(self.zero, Zero3)

    def forward(self, layer, *_):
        self.look("forward", layer)

    def backward(self, layer, *_):
        if self.zero.waiting is None:  # stages 0 and 1: nothing is reduced now
            self.look("backward", layer)

    def look(self, what, layer=None):
        parts = []
        for unit in self.units:
            whole = unit.whole.untyped_storage().nbytes() if self.stage_3() else 0
            kept = tensor_bytes([unit.own] if self.stage_3() else [unit.whole, unit.own])
            made = [p.grad for p in unit.parameters if p.grad is not None]
            made += [unit.gradient] if unit.gradient is not None else []
            states = tensor_bytes([unit.master]) + sum(
                value.nbytes
                for name, value in self.zero.optimizer.state[unit.master].items()
                if name != "step"
            )
            parts.append((kept, whole, tensor_bytes(made), states))
        sent = sum(
            sent_bytes(name, total.size_bytes, torch.distributed.get_world_size())
            for name, total in self.log.sent().items()
        )
        self.seen.append((what, layer, *zip(*parts, strict=True), sent))


def real_step(stage):
    """What a rank holds at each moment of its second step: the first makes the states."""
    torch.manual_seed(0)
    launch.init()
    layers = [nn.Linear(WIDTH, WIDTH, bias=False, dtype=torch.bfloat16) for _ in range(LAYERS)]
    model = nn.Sequential(*layers)
    optimizer = torch.optim.AdamW
    zero = (
        WatchedZero3(model, model, optimizer)
        if stage == 3
        else WatchedZero(model, model, optimizer, stage)
    )
    inputs = torch.ones(2, WIDTH, dtype=torch.bfloat16, requires_grad=True)
    model(inputs).sum().backward()
    zero.step()
    assert ledger(model, zero.optimizer)["optimizer"]
    with log_wire() as log:
        recorder = Recorder(model, zero, log)
        clear = zero.optimizer.zero_grad
        zero.optimizer.zero_grad = lambda: (clear(), recorder.look("update"))
        recorder.look("begin")
        model(inputs).sum().backward()
        zero.step()
    return recorder.seen


@pytest.mark.parametrize(("stage", "ranks"), [(0, 2), (1, 3), (2, 2), (3, 3)])
def test_each_moment_is_that_of_a_real_step(stage, ranks):
    expected = [
        (
            moment.what,
            moment.layer,
            moment.weights,
            moment.gathered,
            moment.gradients,
            moment.states,
            moment.sent_bytes,
        )
        for moment in zero_steps(PARAMETERS, LAYERS, ranks, stage).moments
    ]
    for seen in launch.run(real_step, stage, ranks=ranks):
        assert seen == expected


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_bytes_sent_and_kept_are_those_of_the_stages(stage):
    """Second source: the closed formulas of `zero` and `states`."""
    steps = zero_steps(1200, 4, 6, stage)
    bill = zero_stages(4800, 6, MIXED_16).bills[stage]
    assert steps.moments[-1].sent_bytes == pytest.approx(bill.sent_bytes)
    states = model_states(4800, MIXED_16, Layout(dp=6, zero_stage=stage))
    at_rest = steps.moments[0].total_bytes
    assert at_rest == states.total_bytes - states.gradients_bytes
    if stage < 2:
        assert steps.most_bytes == states.total_bytes
    else:  # and one layer's whole gradient instead of its part; under 3 its whole weights as well
        extra = 2 * 1200 - 2 * 200 + (2 * 1200 if stage == 3 else 0)
        assert steps.most_bytes == states.total_bytes + extra
    last = steps.moments[-1]
    assert all(last.published) and not any(last.gradients) and not any(last.gathered)


def test_bad_input():
    with pytest.raises(ValueError, match="can't be cut into 5 equal parts"):
        zero_steps(12, 2, 5, 1)
    with pytest.raises(ValueError, match="stage must be at most 3"):
        zero_steps(12, 2, 2, 4)


STEPS = [zero_steps(12, 3, 2, 3), zero_steps(36, 3, 3, 1)]
PROBES = {
    "zero_steps": Probe(
        zero_steps,
        {"layer_parameters": 12, "layers": 2, "ranks": 2, "stage": 1},
        {"layer_parameters": 24, "layers": 3, "ranks": 3, "stage": 2},
    ),
}
RECORDS = {
    "ZeroMoment": [*STEPS[0].moments, STEPS[1].moments[-1]],
    "ZeroSteps": STEPS,
}
