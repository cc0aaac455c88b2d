"""Versions of DDP that the check must refuse, as patches of the course's own; another right one."""

from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch import nn

from course_lib.scratch.ddp import DDP, Bucket, after_backward, fill
from course_lib.scratch.wire import start_all_reduce
from tests.checking.builds.patches import patched, versions


class Copies(Bucket):
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


def _on(bucket):
    """DDP with buckets of this kind."""
    ddp = patched(DDP, "Bucket(part)", "self.bucket(part)")
    ddp.bucket = bucket
    return [bucket, ddp]


Copies.__name__, Counting.__name__ = "Bucket", "DDP"
RIGHT = [("counts and copies", [Copies, Counting])]
_BUCKETS = """
    the sum
    - torch.div(parameter.grad, dist.get_world_size(), out=view)
    + view.copy_(parameter.grad)
    ? 1 2 times what is expected: the sum over ranks
    twice divided
    + torch.div(parameter.grad, dist.get_world_size() ** 2, out=view)
    ? 1 1/2 of what is expected: it is divided
    the mean of two
    + torch.div(parameter.grad, 2, out=view)
    ? 2 is 1.5 times what is expected
    `.grad` is not the mean
    - parameter.grad = view  # the mean of all ranks will arrive here
    ? 1 is what rank 0 has by itself
    nobody waits
    - self.work.wait()
    ? 1 is 1/2 of what rank 0 has by itself
    not on a ring
    + if type(self.work).__name__ != "RingSum":
    +     self.work.wait()
    ? 5 on a ring: the gradient of
    waits in send
    - self.work = all_reduce(self.flat)
    + self.work = all_reduce(self.flat)
    + self.work.wait()
    ? 1 `send` waits for its sum
    an all-reduce for each
    + for view in self.views.values():
    +     self.work = all_reduce(view)
    ? 1 `all_reduce` is called 6 times
"""
_DDPS = r"""
    own weights
    - dist.broadcast(tensor, src=0)
    ? 2 rank 1 of 3.*still what this rank began with
    no buffers
    - module.state_dict().values()
    + [parameter.detach() for parameter in module.parameters()]
    ? 2 after the constructor `shift`
    no gradients of before
    - return self.module(*args)
    + self.module.zero_grad()
    + return self.module(*args)
    ? 2 without zero_grad: the gradient
    one cap for all
    - fill(trained, cap_bytes, first_bytes)
    + fill(trained, cap_bytes, cap_bytes)
    ? 3 fewer all-reduce calls than expected
    whatever is full
    - for bucket in self.buckets[self.sent :]:
    -     if bucket.waiting:
    -         return
    + for bucket in [one for one in self.buckets if not (one.waiting or one.work)]:
    ? 2 rank 1.*bucket 1 is sent before bucket 0
    all at the end
    - bucket.take(parameter)
    - self._send_full_buckets()
    + bucket.take(parameter)
    ? 2 nothing travels while backward runs
    too early
    - if bucket.waiting:
    + if len(bucket.waiting) == len(bucket.views):
    ? 2 bucket 0 is sent when 1 of its 2 gradients
    waits at once
    - bucket.send(self.all_reduce)
    + bucket.send(self.all_reduce)
    + bucket.work.wait()
    ? 2 waits for a sum before the last gradient
    its own all-reduce
    + bucket.send(start_all_reduce)
    ? 2 nothing is given to the `all_reduce`
    no end
    - bucket.receive()
    + bucket.waiting = set(bucket.views)
    ? 2 backward.* returns, and DDP waits for 0 of 3 sums
    one update only
    - self.running, self.sent = False, 0
    + self.running = False
    ? 2 after one backward pass DDP is not ready
    no_sync ignored
    - self.syncing = False
    ? 3 a backward pass inside no_sync.. sends 4 times
    quiet after an error
    - try:
    -     yield
    - finally:
    -     self.syncing = True
    + yield
    + self.syncing = True
    ? 3 after an error inside no_sync
    swallows errors
    + try:
    +     yield
    + except Exception:
    +     pass
    + self.syncing = True
    ? 3 an error inside no_sync.. does not come out of it
    zeros, and nothing is said
    - if names and not self.find_unused:
    + if False:
    ? 4 rank 1 of 2.*raises nothing, expected a
    whole buckets only
    + if names and any(b.waiting == set(b.views) for b in self.buckets):
    ? 4 rank 1 of 2, all in one bucket, does not use .*raises nothing, expected a
    another error
    - RuntimeError
    + ValueError
    ? 4 raises ValueError, expected a RuntimeError
    names all
    - {', '.join(names)}
    + {[name for name, _ in self.module.named_parameters()]}
    ? 4 the error names left.weight as well
    an error without names
    + a parameter
    ? 4 does not name right.weight
    nothing for nobody
    - bucket.receive()
    + bucket.receive()
    + for parameter in bucket.views:
    +     parameter.grad = parameter.grad if parameter.grad.any() else None
    ? 4 by no rank: .* is None
    forgets what was kept
    - if parameter.grad is None:
    -     parameter.grad = torch.zeros_like(parameter)
    + parameter.grad = torch.zeros_like(parameter)
    ? 4 used inside no_sync.. only
"""
WRONG = [*versions(Bucket, _on, _BUCKETS), *versions(DDP, lambda ddp: [Bucket, ddp], _DDPS)]
