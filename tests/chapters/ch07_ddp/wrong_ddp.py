"""Versions of DDP that the check must refuse: (what was thought, answer, words of the refusal)."""

from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch import nn

from course_lib.scratch.ddp import DDP as Course
from course_lib.scratch.ddp import Bucket as Views
from course_lib.scratch.ddp import after_backward, fill
from course_lib.scratch.wire import start_all_reduce
from tests.checking.builds.patches import patched, versions


class Copies(Views):
    """Right: gradients are copied into the flat tensor when it is sent, and back at the end."""

    def take(self, parameter):
        self.waiting.remove(parameter)

    def send(self, all_reduce):
        for parameter, view in self.views.items():
            view.copy_(parameter.grad)
        self.work = all_reduce(self.flat)

    def receive(self):
        self.work.wait()
        for parameter, view in self.views.items():
            parameter.grad = view / dist.get_world_size()
        self.waiting = set(self.views)


class Counting(nn.Module):
    """Right: it counts what is missing, and looks into every bucket only at its turn."""

    bucket = Copies

    def __init__(self, module, cap, first, find_unused=False, *, all_reduce=start_all_reduce):
        super().__init__()
        self.module, self.find_unused, self.all_reduce = module, find_unused, all_reduce
        self.quiet, self.begun = False, False
        self.replicate()
        trained = [p for p in module.parameters() if p.requires_grad]
        self.buckets = [self.bucket(part) for part in fill(trained, cap, first)]
        self.home = {p: bucket for bucket in self.buckets for p in bucket.views}
        self.unsent = list(self.buckets)
        for parameter in trained:
            parameter.register_post_accumulate_grad_hook(self._ready)

    def replicate(self):
        for tensor in [*self.module.parameters(), *self.module.buffers()]:
            dist.broadcast(tensor.detach(), 0)

    def forward(self, *args):
        return self.module(*args)

    @contextmanager
    def no_sync(self):
        self.quiet = True
        try:
            yield
        finally:
            self.quiet = False

    def _ready(self, parameter):
        if self.quiet:
            return
        if not self.begun:
            self.begun = True
            after_backward(self._finish)
        self.home[parameter].take(parameter)
        self.send()

    def send(self):
        while self.unsent and not self.unsent[0].waiting:
            self.unsent.pop(0).send(self.all_reduce)

    @torch.no_grad()
    def _finish(self):
        self._treat_unused()
        for bucket in self.buckets:
            bucket.receive()
        self.begun, self.unsent = False, list(self.buckets)

    def _treat_unused(self):
        named = list(self.module.named_parameters())
        unused = {n: p for n, p in named if p in self.home and p in self.home[p].waiting}
        if unused and not self.find_unused:
            raise RuntimeError(f"unused: {list(unused)}")
        for parameter in unused.values():
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            self.home[parameter].take(parameter)
        self.send()


def _answer(bucket=Views, ddp=Course):
    bucket.__name__, ddp.__name__ = "Bucket", "DDP"
    return [bucket, ddp]


def _counting(bucket):
    """With buckets of this kind."""
    ddp = patched(Counting)
    ddp.bucket = bucket
    return _answer(bucket, ddp)


RIGHT = [("counts and copies", _answer(Copies, Counting))]
_BUCKETS = """
    the sum
    - torch.div(parameter.grad, dist.get_world_size(), out=view)
    + view.copy_(parameter.grad)
    ? 1 2 times what is expected: the sum over ranks
    `.grad` is not the mean
    - parameter.grad = view  # the mean of all ranks will arrive here
    ? 1 is what rank 0 has by itself
    nobody waits
    - self.work.wait()
    ? 1 is 1/2 of what rank 0 has by itself
    waits in send
    - self.work = all_reduce(self.flat)
    + self.work = all_reduce(self.flat)
    + self.work.wait()
    ? 1 `send` waits for its sum
    an all-reduce for each
    - self.work = all_reduce(self.flat)
    + for view in self.views.values():
    +     self.work = all_reduce(view)
    ? 1 `all_reduce` is called 6 times
"""
_COPIES = """
    twice divided
    - self.waiting.remove(parameter)
    + parameter.grad = parameter.grad / dist.get_world_size()
    + self.waiting.remove(parameter)
    ? 1 1/2 of what is expected: it is divided
    the mean of two
    - view / dist.get_world_size()
    + view / 2
    ? 2 is 1.5 times what is expected
    forgets the pass before
    - self.waiting.remove(parameter)
    + before = getattr(self, "before", {}).get(parameter)
    + if before is not None and before is parameter.grad:
    +     parameter.grad = parameter.grad - self.mean[parameter]
    + self.waiting.remove(parameter)
    - self.waiting = set(self.views)
    + self.waiting = set(self.views)
    + self.before = {p: p.grad for p in self.views}
    + self.mean = {p: p.grad.clone() for p in self.views}
    ? 2 without zero_grad: the gradient
    not on a ring
    - self.work.wait()
    + if type(self.work).__name__ != "RingSum":
    +     self.work.wait()
    ? 5 on a ring: the gradient of
"""
_DDPS = r"""
    own weights
    - dist.broadcast(tensor.detach(), 0)
    ? 2 rank 1 of 3.*still what this rank began with
    no buffers
    - [*self.module.parameters(), *self.module.buffers()]
    + self.module.parameters()
    ? 2 after the constructor `shift`
    no whole numbers
    - dist.broadcast(tensor.detach(), 0)
    + if tensor.is_floating_point():
    +     dist.broadcast(tensor.detach(), 0)
    ? 2 after the constructor `count`
    one cap for all
    - fill(trained, cap, first)
    + fill(trained, cap, cap)
    ? 3 fewer all-reduce calls than expected
    whatever is full
    - while self.unsent and not self.unsent[0].waiting:
    -     self.unsent.pop(0).send(self.all_reduce)
    + for bucket in [one for one in self.unsent if not one.waiting]:
    +     self.unsent.remove(bucket)
    +     bucket.send(self.all_reduce)
    ? 2 rank 1.*bucket 1 is sent before bucket 0
    all at the end
    - self.home[parameter].take(parameter)
    - self.send()
    + self.home[parameter].take(parameter)
    - self._treat_unused()
    + for bucket in self.buckets:
    +     bucket.send(self.all_reduce)
    ? 2 nothing travels while backward runs
    too early
    - bucket = Copies
    + bucket = Views
    - not self.unsent[0].waiting
    + len(self.unsent[0].waiting) < len(self.unsent[0].views)
    ? 2 bucket 0 is sent when 1 of its 2 gradients
    waits at once
    - self.unsent.pop(0).send(self.all_reduce)
    + bucket = self.unsent.pop(0)
    + bucket.send(self.all_reduce)
    + bucket.work.wait()
    ? 2 waits for a sum before the last gradient
    its own all-reduce
    - find_unused, all_reduce
    + find_unused, start_all_reduce
    ? 2 nothing is given to the `all_reduce`
    no end
    - self._treat_unused()
    - for bucket in self.buckets:
    -     bucket.receive()
    + for bucket in self.buckets:
    +     bucket.waiting = set(bucket.views)
    ? 2 backward.* returns, and DDP waits for 0 of 3 sums
    one update only
    - self._treat_unused()
    - for
    + for
    - self.begun, self.unsent = False, list(self.buckets)
    + self.begun = False
    ? 2 after one backward pass DDP is not ready
    hooks before
    - parameter.register_post_accumulate_grad_hook(self._ready)
    + parameter.register_hook(lambda _, p=parameter: self._ready(p))
    ? 2 raised|of its 2 gradients are there
    a hook for each use
    - bucket = Copies
    + bucket = Views
    - for parameter in trained:
    -     parameter.register_post_accumulate_grad_hook(self._ready)
    + for layer in (module.ends, module.left, module.right):
    +     layer.register_forward_hook(self._used)
    - def forward(self, *args):
    + def _used(self, layer, _, output):
    +     output.register_hook(lambda _: [self._ready(p) for p in layer.parameters()])
    +
    + def forward(self, *args):
    ? 2 raised
    no_sync ignored
    - self.quiet = True
    ? 3 a backward pass inside no_sync.. sends 4 times
    quiet after an error
    - try:
    -     yield
    - finally:
    -     self.quiet = False
    + yield
    + self.quiet = False
    ? 3 after an error inside no_sync
    swallows errors
    - try:
    -     yield
    - finally:
    -     self.quiet = False
    + try:
    +     yield
    + except Exception:
    +     pass
    + self.quiet = False
    ? 3 does not come out of it
    quiet for ever
    - try:
    -     yield
    - finally:
    -     self.quiet = False
    + yield
    ? 3 is what rank 0 has by itself
    zeros, and nothing is said
    - if unused and not self.find_unused:
    -     raise RuntimeError(f"unused: {list(unused)}")
    ? 4 rank 1 of 2.*raises nothing, expected a
    whole buckets only
    - if unused and not self.find_unused:
    + whole = any(bucket.waiting == set(bucket.views) for bucket in self.buckets)
    + if whole and not self.find_unused:
    ? 4 all in one bucket, does not use
    another error
    - raise RuntimeError
    + raise ValueError
    ? 4 raises ValueError, expected a RuntimeError
    names all
    - {list(unused)}
    + {[name for name, _ in named]}
    ? 4 the error names left.weight as well
    nothing for nobody
    - self._treat_unused()
    - for bucket in self.buckets:
    -     bucket.receive()
    + none = [p for p in self.home if p.grad is None]
    + self._treat_unused()
    + for bucket in self.buckets:
    +     bucket.receive()
    + for parameter in none:
    +     parameter.grad = parameter.grad if parameter.grad.any() else None
    ? 4 by no rank: .* is None
    an error without names
    - f"unused: {list(unused)}"
    + "a parameter got no gradient"
    ? 4 does not name right.weight
    the others wait
    - self._treat_unused()
    - for bucket in self.buckets:
    -     bucket.receive()
    + if not self.find_unused:
    +     self._treat_unused()
    + for bucket in self.buckets:
    +     if bucket not in self.unsent:
    +         bucket.receive()
    +     bucket.waiting = set(bucket.views)
    ? 4 rank 0 (is in allreduce|lost its connection to rank 1, which had returned)
    forgets what was kept
    - if parameter.grad is None:
    -     parameter.grad = torch.zeros_like(parameter)
    + parameter.grad = torch.zeros_like(parameter)
    ? 4 used inside no_sync.. only
"""
WRONG = [
    *versions(Views, _answer, _BUCKETS),
    *versions(Copies, _counting, _COPIES),
    *versions(Counting, lambda ddp: _answer(ddp=ddp), _DDPS),
]
