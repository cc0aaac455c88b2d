"""Versions of DDP that the check must refuse, as patches of the course's own; another right one."""

from course_lib.scratch.ddp import DDP, Bucket
from tests.checking.builds.patches import patched, versions


def _on(bucket):
    """DDP with buckets of this kind."""
    ddp = patched(DDP, "Bucket(part)", "self.bucket(part)")
    ddp.bucket = bucket
    return [bucket, ddp]


_COPIES = patched(
    Bucket,
    "view = self.views[parameter]\ntorch.div(parameter.grad, dist.get_world_size(), out=view)\n"
    "parameter.grad = view  # the mean of all ranks will arrive here\n",
    "",
    "self.work = all_reduce(self.flat)",
    "for parameter, view in self.views.items():\n"
    "    view.copy_(parameter.grad)\n"
    "self.work = all_reduce(self.flat)",
    "self.work.wait()",
    "self.work.wait()\n"
    "for parameter, view in self.views.items():\n"
    "    parameter.grad = view / dist.get_world_size()",
)
RIGHT = [("copies when it is sent", _on(_COPIES))]
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
    zeros, and nothing is said
    - if names and not self.find_unused:
    + if False:
    ? 4 rank 1 of 2.*raises nothing, expected a
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
