"""Checkpoints that the check must refuse: (what was thought, answer, words of the refusal)."""

import torch
from torch.autograd import Function, grad


class _Draws(Function):
    """Right but for dropout: the second run draws new masks."""

    @staticmethod
    def forward(ctx, layers, x, *parameters):
        ctx.layers, ctx.parameters, ctx.rng = layers, parameters, torch.get_rng_state()
        ctx.save_for_backward(x)
        return layers(x)

    @staticmethod
    def backward(ctx, gradient):
        x = ctx.saved_tensors[0].detach().requires_grad_()
        with torch.enable_grad():
            y = ctx.layers(x)
        return None, *grad(y, (x, *ctx.parameters), gradient)


class _DrawsAside(_Draws):
    @staticmethod
    def backward(ctx, gradient):
        with torch.random.fork_rng([]):
            return _Draws.backward(ctx, gradient)


class _SetsTheGeneratorBack(_Draws):
    @staticmethod
    def backward(ctx, gradient):
        torch.set_rng_state(ctx.rng)
        return _Draws.backward(ctx, gradient)


class _SeedsAnew(_Draws):
    """Its own seed in both runs: the masks are equal, and everybody draws the same after it."""

    @staticmethod
    def forward(ctx, layers, x, *parameters):
        torch.manual_seed(0)
        return _Draws.forward(ctx, layers, x, *parameters)

    @staticmethod
    def backward(ctx, gradient):
        with torch.random.fork_rng([]):
            torch.manual_seed(0)
            return _Draws.backward(ctx, gradient)


class _KeepsTheGraph(Function):
    @staticmethod
    def forward(ctx, layers, x, *parameters):
        ctx.parameters, ctx.x = parameters, x.detach().requires_grad_()
        with torch.enable_grad():
            ctx.y = layers(ctx.x)
        return ctx.y.detach()

    @staticmethod
    def backward(ctx, gradient):
        return None, *grad(ctx.y, (ctx.x, *ctx.parameters), gradient)


class _KeepsAnAttribute(Function):
    @staticmethod
    def forward(ctx, layers, x, *parameters):
        ctx.layers, ctx.parameters, ctx.x = layers, parameters, x
        return layers(x)

    @staticmethod
    def backward(ctx, gradient):
        x = ctx.x.detach().requires_grad_()
        with torch.enable_grad():
            y = ctx.layers(x)
        return None, *grad(y, (x, *ctx.parameters), gradient)


class _RunsTwice(_Draws):
    @staticmethod
    def backward(ctx, gradient):
        with torch.no_grad():
            ctx.layers(ctx.saved_tensors[0])
        return _Draws.backward(ctx, gradient)


class _ForgetsTheParameters(_Draws):
    @staticmethod
    def backward(ctx, gradient):
        x_gradient = _Draws.backward(ctx, gradient)[1]
        return None, x_gradient, *[None for _ in ctx.parameters]


class _ForgetsX(_Draws):
    @staticmethod
    def backward(ctx, gradient):
        _, _, *others = _Draws.backward(ctx, gradient)
        return None, None, *others


class _Adds(Function):
    """Adds the parameters' gradients itself, and returns them as well."""

    forward = _Draws.forward

    @staticmethod
    def backward(ctx, gradient):
        x = ctx.saved_tensors[0].detach().requires_grad_()
        with torch.enable_grad():
            y = ctx.layers(x)
        y.backward(gradient)
        return None, x.grad, *[p.grad.clone() for p in ctx.parameters]


class _TooFew(_Draws):
    @staticmethod
    def backward(ctx, gradient):
        return _Draws.backward(ctx, gradient)[:2]


class _NoGraph(_Draws):
    @staticmethod
    def backward(ctx, gradient):
        x = ctx.saved_tensors[0]
        y = ctx.layers(x)
        return None, *grad(y, (x, *ctx.parameters), gradient)


class _ForgetsTheGradient(_Draws):
    @staticmethod
    def backward(ctx, gradient):
        return _Draws.backward(ctx, torch.ones_like(gradient))


class _AddsInside(_Draws):
    """As torch's own did before there was use_reentrant=False, but for the parameters."""

    @staticmethod
    def backward(ctx, gradient):
        x = ctx.saved_tensors[0].detach().requires_grad_()
        with torch.enable_grad():
            torch.autograd.backward(ctx.layers(x), gradient)
        return None, x.grad, *[None for _ in ctx.parameters]


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


class _ChangesX(_Draws):
    """Without detach, x itself begins to need a gradient."""

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        if x.is_leaf:
            x.requires_grad_()
        return _Draws.backward(ctx, gradient)


class _OnTheLayers(_Draws):
    """The input is kept on the module: a second run of it takes its place."""

    @staticmethod
    def forward(ctx, layers, x, *parameters):
        layers.kept = ctx.kept = x
        return _Draws.forward(ctx, layers, x, *parameters)

    @staticmethod
    def backward(ctx, gradient):
        x = ctx.layers.kept.detach().requires_grad_()
        with torch.enable_grad():
            y = ctx.layers(x)
        return None, *grad(y, (x, *ctx.parameters), gradient)


class _InFp32(_Draws):
    @staticmethod
    def backward(ctx, gradient):
        x = ctx.saved_tensors[0].detach().float().requires_grad_()
        with torch.enable_grad():
            y = ctx.layers(x)
        return None, *grad(y, (x, *ctx.parameters), gradient)


class _NeedsParameters(_Draws):
    """Takes the first parameter's word for what is trained."""

    @staticmethod
    def backward(ctx, gradient):
        assert ctx.parameters[0].requires_grad
        return _Draws.backward(ctx, gradient)


class _KeepsTheSecondRun(_Draws):
    kept = ()

    @staticmethod
    def backward(ctx, gradient):
        x = ctx.saved_tensors[0].detach().requires_grad_()
        with torch.enable_grad():
            y = ctx.layers(x)
        _KeepsTheSecondRun.kept = x, y
        return None, *grad(y, (x, *ctx.parameters), gradient)


def _named(one):
    one.__name__ = "Checkpoint"
    return [one]


_FIRST, _SECOND, _THIRD, _FOURTH = (f"step {n} of 4.*" for n in (1, 2, 3, 4))
WRONG = [
    ("no gradient for parameters", _named(_ForgetsTheParameters), _FIRST + "0.weight gets no"),
    ("no gradient for x", _named(_ForgetsX), _FIRST + "x gets no gradient"),
    ("adds twice", _named(_Adds), _FIRST + "0.weight is 2 times.*added twice"),
    ("adds inside", _named(_AddsInside), _FIRST + "adds to .grad by itself"),
    ("changes x", _named(_ChangesX), _FIRST + "x, which needs no gradient, has changed"),
    ("x on the layers", _named(_OnTheLayers), _FIRST + "where a segment runs twice"),
    ("in fp32", _named(_InFp32), _FIRST + "raised RuntimeError"),
    ("needs parameters", _named(_NeedsParameters), _FIRST + "raised IndexError"),
    ("keeps the second run", _named(_KeepsTheSecondRun), _SECOND + "beside the gradients"),
    ("too few gradients", _named(_TooFew), _FIRST + "for each argument of forward"),
    ("runs without a graph", _named(_NoGraph), _FIRST + "(raised RuntimeError|torch says)"),
    ("starts from ones", _named(_ForgetsTheGradient), _FIRST + "0.weight differs in"),
    ("keeps the graph", _named(_KeepsTheGraph), _SECOND + "what the layers have computed is still"),
    ("keeps x as an attribute", _named(_KeepsAnAttribute), _SECOND + "keeps 0 bytes"),
    ("runs twice", _named(_RunsTwice), _SECOND + "run 2 times in backward"),
    ("new masks", _named(_Draws), _THIRD + "0.weight in the second of two.*other masks"),
    (
        "new masks, put back",
        _named(_DrawsAside),
        _THIRD + "without checkpointing, from the same seed",
    ),
    ("a seed of its own", _named(_SeedsAnew), "(other masks|after forward the generator)"),
    ("leaves it set back", _named(_SetsTheGeneratorBack), _FOURTH + "after backward the generator"),
    ("a function", _named(type("Checkpoint", (), {"forward": 1, "backward": 2})), "wants an auto"),
]
RIGHT = [("by hand", _named(_ByHand))]
