"""ZeRO by hand, on real ranks: the paper's bytes, clipping, decay, what is whole and left out."""

import itertools
from dataclasses import replace

import pytest
import torch
from together import sentence
from torch import nn

from course_lib import launch
from course_lib.demos.shared.training import Training, loss_share, mean_loss, own_rows
from course_lib.measure.peak import tensor_bytes
from course_lib.measure.wire import log_wire
from course_lib.scratch.flat_parameter import FlatParameter
from course_lib.scratch.gpt import ledger
from course_lib.scratch.zero import (
    Unit,
    Zero,
    Zero3,
    clip,
    decay,
    global_norm,
    own_norm,
    units_of,
)
from course_lib.theory.inputs.layout import Layout
from course_lib.theory.inputs.recipe import RECIPES
from course_lib.theory.memory.states import LocalParameters, model_states, sharding_buffers

TRAINING = Training(model="1x18x2", steps=3, batch=8, sequence=8)  # 18: units need padding


def cut(model, layers, optimizer, stage):
    kind, more = (Zero3, ()) if stage == 3 else (Zero, (stage,))
    return kind(model, layers, optimizer, *more)


def build(stage, dtype=torch.float32, optimizer=TRAINING.optimizer):
    model = TRAINING.build(launch.init().device).to(dtype)
    return model, cut(model, model.blocks, optimizer, stage)


def backward(model, batch):
    loss_share(model, own_rows(batch, launch.init()), batch).backward()


def whole_weights(model, zero, stage):
    """The weights, which stage 3 gathers first."""
    for unit in zero.units.values() if stage == 3 else ():
        unit.gather()
    return [p.detach().clone() for p in model.parameters()]


def unit_sizes():
    model = TRAINING.build()
    return [sum(p.numel() for p in unit) for _, unit in units_of(model, model.blocks)]


# -- vectors and bytes -----------------------------------------------------------------------------


def test_units_hold_every_parameter_once():
    a, b = nn.Linear(2, 2), nn.Linear(2, 2)
    b.weight = a.weight
    model = nn.Sequential(a, nn.ReLU(), b)
    units = [(module, [tuple(p.shape) for p in unit]) for module, unit in units_of(model, [a, b])]
    assert units == [(a, [(2, 2), (2,)]), (b, [(2,)])]  # the model itself has nothing left
    model = TRAINING.build()
    assert [module for module, _ in units_of(model, model.blocks)] == [*model.blocks, model]
    assert sum(unit_sizes()) == sum(p.numel() for p in model.parameters())


def same_vectors():
    rank, block = launch.init(), TRAINING.build().blocks[0]
    flat = FlatParameter(dict(block.named_parameters()), rank.device)
    return torch.equal(Unit(block.parameters(), rank.world).own, flat.shard.detach())


def test_zero_and_fsdp_cut_one_vector_in_the_same_places():
    assert all(launch.run(same_vectors, ranks=3))


def bytes_in_bf16():
    """By stage: weights, gradients, fp32 weights with moments, after a backward pass in bf16."""
    found = []
    for stage in range(4):
        model, zero = build(stage, dtype=torch.bfloat16)
        batch = TRAINING.batches(launch.init().device)[0]
        backward(model, batch)
        zero.step()
        backward(model, batch)
        units = zero.units.values()
        gradients = [*(p.grad for p in model.parameters()), *(unit.gradient for unit in units)]
        masters = tensor_bytes(unit.master for unit in units)
        found.append(
            [
                tensor_bytes(tensor for unit in units for tensor in (unit.whole, unit.own)),
                tensor_bytes(one for one in gradients if one is not None),
                masters + ledger(model, zero.optimizer)["optimizer"],
            ]
        )
    return found


def test_bf16_states_are_those_of_the_papers_table():
    ranks, expected = 4, []
    for stage in range(4):
        totals = [0, 0, 0]
        for size in unit_sizes():
            states = model_states(size, RECIPES["mixed-16"], Layout(dp=ranks, zero_stage=stage))
            padding = 2 * (-size % ranks) if stage in (1, 2) else 0
            totals[0] += states.parameters_bytes + padding
            totals[1] += states.gradients_bytes
            totals[2] += states.master_copy_bytes + states.optimizer_state_bytes
        expected.append(totals)
    assert any(size % ranks for size in unit_sizes())  # otherwise this test shows no padding
    assert launch.run(bytes_in_bf16, ranks=ranks) == [expected] * ranks


def whole_units():
    """The most bytes of whole units at any time: seen by every module, forward and backward."""
    model, zero = build(3)
    seen = []

    def look(*_):
        seen.append(sum(u.whole.untyped_storage().nbytes() for u in zero.units.values()))

    for module in model.modules():
        if not list(module.children()):
            module.register_forward_hook(look)
            module.register_full_backward_hook(look)
    backward(model, TRAINING.batches()[0])
    look()
    return max(seen), seen[-1]


def test_stage_3_has_one_layer_whole_at_a_time():
    largest, after_backward = launch.run(whole_units, ranks=2)[0]
    layer, ends = unit_sizes()[0], unit_sizes()[-1]
    local = LocalParameters(layer + ends, layer_dense=layer, ends_dense=ends)
    recipe = replace(RECIPES["fp32-16"], gathered_units=1)
    buffers = sharding_buffers(local, recipe, Layout(dp=2, zero_stage=3))
    padding = 4 * (layer % 2 + ends % 2)
    assert largest == buffers["gathered_parameters_bytes"] + padding
    assert after_backward == 0


# -- when gradients travel -------------------------------------------------------------------------


def sums_in_backward():
    """By stage: sums that backward makes, and whole gradients that it leaves."""
    found = {}
    for stage in (1, 2, 3):
        model, zero = build(stage)
        with log_wire() as log:
            backward(model, TRAINING.batches()[0])
        during = len([call for call in log.calls if call.what == "reduce-scatter"])
        found[stage] = during, sum(p.grad is not None for p in model.parameters())
        zero.reduce()
    return found


def test_stage_2_sums_during_backward_and_keeps_no_whole_gradient():
    tensors, units = len(list(TRAINING.build().parameters())), len(unit_sizes())
    found = launch.run(sums_in_backward, ranks=2)[0]
    assert found == {1: (0, tensors), 2: (units, 0), 3: (units, 0)}


class Sometimes(nn.Sequential):
    """Two layers of which the second is used only where it is told to."""

    def __init__(self):
        super().__init__(nn.Linear(4, 4), nn.Linear(4, 4))

    def forward(self, x, both):
        return super().forward(x) if both else self[0](x)


class Chooser(nn.Module):
    """Two such layers and a head, with weights that are the same on every rank; one is frozen."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList([Sometimes(), Sometimes()])
        self.head = nn.Linear(4, 1)
        self.layers[0][0].bias.requires_grad_(False)

    def forward(self, x, choices):
        for layer, both in zip(self.layers, choices, strict=True):
            x = layer(x, both)
        return self.head(x).mean()


def sgd(parameters):
    return torch.optim.SGD(parameters, lr=0.01, momentum=0.9, weight_decay=0.1)


def loss_of(model, rank, number):
    """Ranks and micro-batches differ in what they use; the very first uses everything."""
    inputs = torch.arange(8.0).view(2, 4) + rank + 10 * number
    return model(inputs, (number == 0, (rank + number) % 2 == 0))


CASES = list(itertools.product(range(4), (1, 3)))  # stages, micro-batches


def trained_on_what_is_used():
    found, rank = [], launch.init()
    for stage, micro_batches in CASES:
        model = Chooser()
        zero = cut(model, model.layers, sgd, stage)
        for _ in range(2):
            for number in range(micro_batches):
                (loss_of(model, rank.rank, number) / (rank.world * micro_batches)).backward()
            zero.step()
        found.append(whole_weights(model, zero, stage))
    return found


def trained_alone(ranks, micro_batches):
    model = Chooser()
    optimizer = sgd([p for p in model.parameters() if p.requires_grad])
    for _ in range(2):
        optimizer.zero_grad(set_to_none=False)
        for rank in range(ranks):
            for number in range(micro_batches):
                (loss_of(model, rank, number) / (ranks * micro_batches)).backward()
        optimizer.step()
    return [p.detach() for p in model.parameters()]


def test_what_one_rank_or_micro_batch_leaves_out_is_not_lost():
    for each in launch.run(trained_on_what_is_used, ranks=2):
        for (_, micro_batches), found in zip(CASES, each, strict=True):
            expected = trained_alone(2, micro_batches)
            torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)


def refusals():
    model = Chooser()
    Zero3(model, reversed(model.layers), sgd)
    groups = lambda own: torch.optim.AdamW([{"params": own}, {"params": []}])  # noqa: E731
    return [
        sentence(lambda: loss_of(model, 0, 0).backward()),
        sentence(lambda: Zero(other := Chooser(), other.layers, groups)),
    ]


def test_what_zero_cannot_do_is_said():
    order, groups = launch.run(refusals, ranks=1)[0]
    assert "layers in the order of the forward pass" in order
    assert "the optimizer has 2 groups of parameters" in groups


# -- clipping and decay ----------------------------------------------------------------------------

LIMIT = 0.05
RATE, DECAY = 0.01, 0.5


def plain(parameters):
    # eps is not AdamW's 1e-8, with which it enlarges the rounding of gradients that are nearly 0.
    return torch.optim.AdamW(parameters, lr=RATE, eps=1e-3, weight_decay=0.0)


def clipped_and_decayed(stage):
    """Weights after training, and of the last update the norms: found, own, and after clipping."""
    model, zero = build(stage, optimizer=plain)
    for batch in TRAINING.batches():
        backward(model, batch)
        found = clip(zero, LIMIT)
        norms = [float(found), float(own_norm(zero)), float(global_norm(zero))]
        decay(zero, RATE * DECAY)
        zero.step()
    return norms, whole_weights(model, zero, stage)


def clipped_and_decayed_alone():
    """In one process, with two groups of parameters."""
    model = TRAINING.build()
    matrices = [p for p in model.parameters() if p.ndim > 1]
    others = [p for p in model.parameters() if p.ndim <= 1]
    optimizer = plain(matrices)
    optimizer.param_groups[0]["weight_decay"] = DECAY
    optimizer.add_param_group({"params": others})
    for batch in TRAINING.batches():
        optimizer.zero_grad()
        mean_loss(model, batch).backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), LIMIT)
        optimizer.step()
    return float(norm), [p.detach() for p in model.parameters()]


@pytest.mark.parametrize(("stage", "ranks"), [(0, 2), (1, 4), (3, 3)])
def test_clipping_and_decay_are_those_of_one_process(stage, ranks):
    norm, weights = clipped_and_decayed_alone()
    results = launch.run(clipped_and_decayed, stage, ranks=ranks)
    assert norm > LIMIT
    for (found, own, after), theirs in results:
        assert found == pytest.approx(norm, rel=1e-5)
        assert after == pytest.approx(LIMIT, rel=1e-3)
        torch.testing.assert_close(theirs, weights, rtol=1e-4, atol=1e-5)
        assert own == pytest.approx(after) if stage == 0 else own < after
    if stage:  # the mistake: every rank would divide by another number
        assert len({own for (_, own, _), _ in results}) == ranks
