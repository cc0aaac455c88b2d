"""Loss scaling: beside torch's own, through overflows, and what it saves."""

import torch

from course_lib.chapters.ch03_what_is_in_the_memory.exercises import loss_scale
from course_lib.scratch.precision import LossScaler

# Times which the gradient overflows: at once, after growth, and never again.
FACTORS = [1.0, 1e36, 1.0, 2.0, -1.0, 1e37, 0.5, 1.0, 3.0, 1.0]


def train(scaled, step):
    """Weights after each of ten updates of SGD with momentum."""
    torch.manual_seed(0)
    layer = torch.nn.Linear(3, 2)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1, momentum=0.9)
    ways = []
    for factor in FACTORS:
        optimizer.zero_grad()
        scaled(layer(torch.ones(4, 3)).square().mean() * factor).backward()
        step(optimizer)
        ways.append(torch.cat([p.detach().flatten() for p in layer.parameters()]))
    return torch.stack(ways)


def test_it_does_what_torch_does():
    ours, scales = LossScaler(growth_interval=2), []
    theirs = torch.amp.GradScaler("cpu", growth_interval=2)

    def step_theirs(optimizer):
        theirs.step(optimizer)
        theirs.update()
        scales.append(theirs.get_scale())

    def step_ours(optimizer):
        overflow = FACTORS[len(made)] > 1e30
        made.append(ours.step(optimizer))
        assert made[-1] != overflow
        assert ours.scale == scales[len(made) - 1]

    made = []
    reference = train(theirs.scale, step_theirs)
    assert torch.equal(train(ours.scaled, step_ours), reference)
    assert made.count(False) == 2
    assert max(scales) > 2**16 > min(scales)


def test_weights_without_gradient_are_left_alone():
    weights = [torch.nn.Parameter(torch.ones(2)) for _ in range(2)]
    scaler = LossScaler(scale=8.0)
    scaler.scaled(weights[0].sum()).backward()
    assert scaler.step(torch.optim.SGD(weights, lr=0.5))
    assert weights[0].tolist() == [0.5, 0.5]
    assert weights[1].tolist() == [1.0, 1.0]


def test_a_small_gradient_survives_fp16():
    weight = torch.nn.Parameter(torch.zeros(1, dtype=torch.float16))
    for scale, arrived in ((1.0, False), (2.0**16, True)):
        weight.grad = None
        scaler = LossScaler(scale)
        scaler.scaled((weight.float() * 1e-8).sum()).backward()
        assert bool(weight.grad) == arrived


def test_the_exercise_counts_as_torch_does():
    overflows = [True, False, False, True, *[False] * 4100, True, False]
    theirs = torch.amp.GradScaler("cpu")
    weight = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([weight], lr=1.0)
    for overflow in overflows:
        theirs.scale(torch.zeros(()))  # the scale is made at the first call
        weight.grad = torch.full((1,), float("inf") if overflow else theirs.get_scale())
        theirs.step(optimizer)
        theirs.update()
    assert loss_scale(overflows) == (theirs.get_scale(), -weight.item())
