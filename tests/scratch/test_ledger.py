"""Every byte of the ledger is the formula's byte."""

import pytest
import torch

from course_lib.scratch.accumulation import loss_sum
from course_lib.scratch.gpt import GPT, ledger
from course_lib.scratch.precision import MasterAdamW, adamw_update
from course_lib.theory.inputs.recipe import Recipe
from course_lib.theory.inputs.shape import TransformerShape
from course_lib.theory.memory.peak import training_memory

SHAPE = TransformerShape(layers=2, hidden=32, heads=4, ffn=128, vocab=64, context=16)
SAMPLES = 3


def train_once(dtype, make_optimizer):
    torch.manual_seed(0)
    model = GPT(SHAPE.layers, SHAPE.hidden, SHAPE.heads, SHAPE.vocab, SHAPE.context).to(dtype)
    inputs, labels = torch.randint(0, 64, (SAMPLES, 16)), torch.randint(0, 64, (SAMPLES, 16))
    optimizer = make_optimizer(model.parameters())
    loss_sum(model(inputs).float(), labels).backward()
    optimizer.step()
    return ledger(model, optimizer, [inputs, labels])


@pytest.mark.parametrize(
    ("make", "recipe"),
    [
        (lambda p: torch.optim.SGD(p, 0.1), {"optimizer": "sgd"}),
        (lambda p: torch.optim.SGD(p, 0.1, momentum=0.9), {"optimizer": "momentum"}),
        (lambda p: torch.optim.AdamW(p), {"optimizer": "adamw"}),
    ],
)
def test_fp32_ledger_equals_the_formula(make, recipe):
    found = train_once(torch.float32, make)
    recipe = Recipe(parameters="fp32", gradients="fp32", master_copy=False, **recipe)
    predicted = training_memory(SHAPE, recipe, SAMPLES).consumers
    assert found == {name: predicted[name] for name in found}


def test_mixed_precision_ledger_equals_the_formula():
    found = train_once(torch.bfloat16, lambda p: MasterAdamW(p, lr=1e-3))
    predicted = training_memory(SHAPE, Recipe(), SAMPLES).consumers
    assert found == {name: predicted[name] for name in found}


def test_master_copy_keeps_updates_that_bf16_loses():
    weight = torch.nn.Parameter(torch.ones(4, dtype=torch.bfloat16))
    plain = torch.nn.Parameter(torch.ones(4, dtype=torch.bfloat16))
    optimizers = MasterAdamW([weight], lr=1e-3), torch.optim.AdamW([plain], lr=1e-3)
    for _ in range(20):
        weight.grad, plain.grad = torch.ones_like(weight), torch.ones_like(plain)
        for optimizer in optimizers:
            optimizer.step()
    assert torch.equal(plain, torch.ones_like(plain))  # each update of 0.001 was rounded away
    assert torch.all(weight < 1)


def test_the_arithmetic_is_that_of_torch():
    rates = {"lr": 0.1, "betas": (0.7, 0.95), "eps": 0.1, "weight_decay": 0.4}
    weight = torch.nn.Parameter(torch.tensor([1.0, -2.0, 3.0]))
    ours, zero = weight.detach().clone(), torch.zeros(3)
    moments, adamw = (zero.clone(), zero.clone()), torch.optim.AdamW([weight], **rates)
    for step in range(1, 6):
        weight.grad = torch.tensor([0.5, -1.0, 0.0]) * step
        adamw_update(ours, weight.grad, *moments, step=step, **rates)
        adamw.step()
        assert torch.allclose(ours, weight, rtol=1e-6)


def test_master_copy_follows_fp32_adamw():
    weight = torch.nn.Parameter(torch.ones(4, dtype=torch.bfloat16))
    reference = torch.nn.Parameter(torch.ones(4))
    ours, fp32 = MasterAdamW([weight], lr=1e-2), torch.optim.AdamW([reference], lr=1e-2)
    for _ in range(5):
        weight.grad, reference.grad = torch.full_like(weight, 0.5), torch.full_like(reference, 0.5)
        ours.step()
        fp32.step()
    assert torch.equal(weight, reference.bfloat16())
