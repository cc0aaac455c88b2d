"""Checkpoints that the check must refuse: (what was thought, answer, words of the refusal)."""

import torch
from torch.autograd import Function, grad

from course_lib.scratch.checkpointing import Checkpoint
from tests.checking.builds.patches import versions


class _ByHand(Function):
    """The generator is put back by hand, and parameters are found in the layers."""

    @staticmethod
    def forward(ctx, layers, x, *_):
        ctx.save_for_backward(x)
        ctx.again, ctx.before = layers, torch.get_rng_state()
        with torch.no_grad():
            return layers(x)

    @staticmethod
    def backward(ctx, gradient):
        now = torch.get_rng_state()
        torch.set_rng_state(ctx.before)
        (kept,) = ctx.saved_tensors
        copy = kept.detach()
        copy.requires_grad = True
        with torch.set_grad_enabled(True):
            output = ctx.again(copy)
        torch.set_rng_state(now)
        trained = [p for p in ctx.again.parameters() if p.requires_grad]
        return None, *grad([output], [copy, *trained], [gradient])


_ByHand.__name__ = "Checkpoint"

_PATCHES = """
    no gradient for parameters
    - return None, *torch.autograd.grad(output, inputs, gradient)
    + return None, torch.autograd.grad(output, x, gradient)[0], *[None for _ in ctx.parameters]
    ? 1 0.weight gets no
    adds twice
    - return None, *torch.autograd.grad(output, inputs, gradient)
    + output.backward(gradient)
    + return None, x.grad, *[p.grad.clone() for p in ctx.parameters]
    ? 1 0.weight is 2 times.*added twice
    adds inside
    - return None, *torch.autograd.grad(output, inputs, gradient)
    + output.backward(gradient)
    + return None, x.grad, *[None for _ in ctx.parameters]
    ? 1 adds to .grad by itself
    changes x
    - (x,) = ctx.saved_tensors
    + (x,) = ctx.saved_tensors
    + if x.is_leaf:
    +     x.requires_grad_()
    ? 1 x, which needs no gradient, has changed
    x on the layers
    - ctx.save_for_backward(x)
    + layers.kept = ctx.kept = x
    + ctx.save_for_backward(x)
    - (x,) = ctx.saved_tensors
    + x = ctx.layers.kept
    ? 1 where a segment runs twice
    in fp32
    - x.detach()
    + x.detach().float()
    ? 1 raised RuntimeError
    needs parameters
    - (x,) = ctx.saved_tensors
    + assert ctx.parameters[0].requires_grad
    + (x,) = ctx.saved_tensors
    ? 1 raised IndexError
    keeps the second run
    - output = ctx.layers(x)
    + output = ctx.layers(x)
    + type(ctx.layers).kept = x, output
    ? 2 beside the gradients
    too few gradients
    - return None, *torch.autograd.grad(output, inputs, gradient)
    + return None, torch.autograd.grad(output, x, gradient)[0]
    ? 1 for each argument of forward
    runs without a graph
    - torch.enable_grad()
    + torch.no_grad()
    ? 1 (raised RuntimeError|torch says)
    starts from ones
    - return None, *torch.autograd.grad(output, inputs, gradient)
    + return None, *torch.autograd.grad(output, inputs, torch.ones_like(gradient))
    ? 1 0.weight differs in
    keeps the graph
    - ctx.save_for_backward(x)
    - return layers(x)
    + ctx.x = x.detach().requires_grad_()
    + with torch.enable_grad():
    +     ctx.y = layers(ctx.x)
    + return ctx.y.detach()
    - (x,) = ctx.saved_tensors
    + return None, *torch.autograd.grad(ctx.y, (ctx.x, *ctx.parameters), gradient)
    ? 2 what the layers have computed is still
    keeps x as an attribute
    - ctx.save_for_backward(x)
    + ctx.x = x
    - (x,) = ctx.saved_tensors
    + x = ctx.x
    ? 2 keeps 0 bytes
    runs twice
    - output = ctx.layers(x)
    + output = ctx.layers(x)
    + ctx.layers(x)
    ? 2 run 2 times in backward
    new masks
    - , same_random_numbers(ctx.random, x.device)
    +
    ? 3 0.weight in the second of two.*other masks
    a seed of its own
    - ctx.save_for_backward(x)
    + torch.manual_seed(0)
    + ctx.save_for_backward(x)
    - output = ctx.layers(x)
    + torch.manual_seed(0)
    + output = ctx.layers(x)
    ? (other masks|after forward the generator)
    leaves it set back
    - , same_random_numbers(ctx.random, x.device):
    + :
    +     torch.set_rng_state(ctx.random[0])
    ? 4 after backward the generator
"""
WRONG = [
    *versions(Checkpoint, lambda wrong: [wrong], _PATCHES),
    ("a function", [type("Checkpoint", (), {"forward": 1, "backward": 2})], "wants an auto"),
]
RIGHT = [("by hand", [_ByHand])]
