"""Versions of DDP that the check must refuse: (what was thought, answer, words of the refusal)."""

from contextlib import contextmanager, suppress

import torch
import torch.distributed as dist
from torch import nn

from course_lib.scratch.replicas.buckets import Bucket as Views
from course_lib.scratch.replicas.buckets import fill
from course_lib.scratch.replicas.ddp import DDP as Course
from course_lib.scratch.replicas.ddp import after_backward
from course_lib.scratch.wire import start_all_reduce


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
        for name, parameter in self.module.named_parameters():
            if parameter in self.home and parameter in self.home[parameter].waiting:
                if not self.find_unused:
                    unused = [
                        n
                        for n, p in self.module.named_parameters()
                        if p in self.home and p in self.home[p].waiting
                    ]
                    raise RuntimeError(f"unused: {unused}, first {name}")
                if parameter.grad is None:
                    parameter.grad = torch.zeros_like(parameter)
                self.home[parameter].take(parameter)
        self.send()


# -- wrong buckets ---------------------------------------------------------------------------------


class SumBucket(Views):
    def take(self, parameter):
        self.views[parameter].copy_(parameter.grad)
        parameter.grad = self.views[parameter]
        self.waiting.remove(parameter)


class NeverArrives(Views):
    """`.grad` stays what it was: the mean lands in the flat tensor only."""

    def take(self, parameter):
        torch.div(parameter.grad, dist.get_world_size(), out=self.views[parameter])
        self.waiting.remove(parameter)


class NoWait(Views):
    def receive(self):
        self.waiting = set(self.views)


class EachByItself(Views):
    """An all-reduce for each parameter, as without buckets."""

    def send(self, all_reduce):
        for view in self.views.values():
            self.work = all_reduce(view)


class SendsAndWaits(Views):
    def send(self, all_reduce):
        self.work = all_reduce(self.flat)
        self.work.wait()


class ByTwo(Copies):
    """The mean of two ranks, however many there are."""

    def receive(self):
        super().receive()
        for parameter in self.views:
            parameter.grad *= dist.get_world_size() / 2


class Forgets(Copies):
    """What an earlier pass has left is not in the sum."""

    def take(self, parameter):
        before = getattr(self, "before", {}).get(parameter)
        if before is not None and before is parameter.grad:
            parameter.grad = parameter.grad - self.mean[parameter]
        super().take(parameter)

    def receive(self):
        super().receive()
        self.before = {p: p.grad for p in self.views}
        self.mean = {p: p.grad.clone() for p in self.views}


class Twice(Copies):
    def take(self, parameter):
        parameter.grad = parameter.grad / dist.get_world_size()
        super().take(parameter)


# -- wrong wrappers --------------------------------------------------------------------------------


class OwnWeights(Counting):
    def replicate(self):
        pass


class ParametersOnly(Counting):
    def replicate(self):
        for tensor in self.module.parameters():
            dist.broadcast(tensor.detach(), 0)


class NoWholeNumbers(Counting):
    """Buffers that are no floats stay."""

    def replicate(self):
        for tensor in [*self.module.parameters(), *self.module.buffers()]:
            if tensor.is_floating_point():
                dist.broadcast(tensor.detach(), 0)


class OneCap(Counting):
    """The first bucket is as large as the others."""

    def __init__(self, module, cap, first, find_unused=False, **options):
        super().__init__(module, cap, cap, find_unused, **options)


class FirstFull(Counting):
    """Sends whatever is full."""

    def send(self):
        for bucket in list(self.unsent):
            if not bucket.waiting:
                self.unsent.remove(bucket)
                bucket.send(self.all_reduce)


class AtTheEnd(Counting):
    """Everything is sent when backward has ended."""

    def send(self):
        pass

    def _treat_unused(self):
        for bucket in self.buckets:
            bucket.send(self.all_reduce)


class TooEarly(Counting):
    """The first gradient sends its bucket."""

    bucket = Views

    def send(self):
        while self.unsent and len(self.unsent[0].waiting) < len(self.unsent[0].views):
            self.unsent.pop(0).send(self.all_reduce)


class WaitsAtOnce(Counting):
    def send(self):
        while self.unsent and not self.unsent[0].waiting:
            bucket = self.unsent.pop(0)
            bucket.send(self.all_reduce)
            bucket.work.wait()


class TorchsOwn(Counting):
    """Never looks at the argument."""

    def __init__(self, *args, all_reduce=None, **options):
        super().__init__(*args, **options)


class NeverFinishes(Counting):
    """Nobody waits when backward has ended."""

    def _finish(self):
        self.begun, self.unsent = False, list(self.buckets)
        for bucket in self.buckets:
            bucket.waiting = set(bucket.views)


class OneUpdate(Counting):
    """Good for one backward pass: what is to be sent is never filled again."""

    def _finish(self):
        for bucket in self.buckets:
            bucket.receive()
        self.begun = False


class BeforeItIsAdded(Counting):
    """A hook on the tensor runs before the gradient is in `.grad`."""

    def __init__(self, module, *args, **options):
        super().__init__(module, *args, **options)
        for parameter in self.home:
            parameter._post_accumulate_grad_hooks.clear()
            parameter.register_hook(lambda _, p=parameter: self._ready(p))


class PerUse(Counting):
    """A hook on each layer: it runs for each use of a layer, and one is used twice."""

    bucket = Views

    def __init__(self, module, *args, **options):
        super().__init__(module, *args, **options)
        for parameter in self.home:
            parameter._post_accumulate_grad_hooks.clear()
        for layer in (module.ends, module.left, module.right):
            layer.register_forward_hook(self._used)

    def _used(self, layer, _, output):
        output.register_hook(lambda _: [self._ready(p) for p in layer.parameters()])


class Loud(Counting):
    @contextmanager
    def no_sync(self):
        yield


class QuietForEver(Counting):
    @contextmanager
    def no_sync(self):
        self.quiet = True
        yield


class NotAfterAnError(Counting):
    """An error inside leaves it quiet."""

    @contextmanager
    def no_sync(self):
        self.quiet = True
        yield
        self.quiet = False


class SwallowsErrors(Counting):
    @contextmanager
    def no_sync(self):
        self.quiet = True
        with suppress(Exception):
            yield
        self.quiet = False


class AnotherError(Counting):
    def _treat_unused(self):
        try:
            super()._treat_unused()
        except RuntimeError as error:
            raise ValueError(str(error)) from None


class NamesAll(Counting):
    def _treat_unused(self):
        try:
            super()._treat_unused()
        except RuntimeError:
            names = [name for name, _ in self.module.named_parameters()]
            raise RuntimeError(f"one of {names} has no gradient") from None


class NothingForNobody(Counting):
    """Where no rank has a gradient, it stays None."""

    def _finish(self):
        none = [p for p in self.home if p.grad is None]
        super()._finish()
        for parameter in none:
            if not parameter.grad.any():
                parameter.grad = None


class Silent(Counting):
    """What is not full is sent all the same."""

    def _treat_unused(self):
        for bucket in self.buckets:
            for parameter in list(bucket.waiting):
                parameter.grad = torch.zeros_like(parameter)
                bucket.take(parameter)
        self.send()


class WithoutNames(Counting):
    def _treat_unused(self):
        if self.unsent and not self.find_unused:
            raise RuntimeError("a parameter got no gradient")
        super()._treat_unused()


class NobodyIsToldOfZeros(Counting):
    """With find_unused it waits only for what was sent: the others wait for ever."""

    def _treat_unused(self):
        if not self.find_unused:
            super()._treat_unused()

    def _finish(self):
        self._treat_unused()
        for bucket in self.buckets:
            if bucket not in self.unsent:
                bucket.receive()
            bucket.waiting = set(bucket.views)
        self.begun, self.unsent = False, list(self.buckets)


class ForgetsWhatWasKept(Counting):
    """Unused in this pass: zeros, though a pass inside no_sync() has left a gradient."""

    def _treat_unused(self):
        for bucket in self.buckets if self.find_unused else ():
            for parameter in bucket.waiting:
                parameter.grad = None
        super()._treat_unused()


class OnlyTorchs(Copies):
    """Torch's own all-reduce may be there before anybody waits; a ring has not even begun."""

    def receive(self):
        if type(self.work).__name__ != "RingSum":
            self.work.wait()
        for parameter, view in self.views.items():
            parameter.grad = view / dist.get_world_size()
        self.waiting = set(self.views)


class RingLess(Counting):
    bucket = OnlyTorchs


class Counting2(Counting):
    bucket = ByTwo


class Counting3(Counting):
    bucket = Forgets


class WholeBucketsOnly(Counting):
    """Nothing is said if a bucket waits for some of its gradients only."""

    def _treat_unused(self):
        whole = any(bucket.waiting == set(bucket.views) for bucket in self.buckets)
        before, self.find_unused = self.find_unused, self.find_unused or not whole
        super()._treat_unused()
        self.find_unused = before


def _answer(bucket=Views, ddp=Course):
    bucket.__name__, ddp.__name__ = "Bucket", "DDP"
    return [bucket, ddp]


_1, _2, _3, _4, _5 = (f"step {number} of 5.*" for number in range(1, 6))
RIGHT = [("counts and copies", _answer(Copies, Counting))]
WRONG = [
    ("the sum", _answer(SumBucket), _1 + "2 times what is expected: the sum over ranks"),
    ("twice divided", _answer(Twice), _1 + "1/2 of what is expected: it is divided"),
    ("`.grad` is not the mean", _answer(NeverArrives), _1 + "is what rank 0 has by itself"),
    ("nobody waits", _answer(NoWait), _1 + "is 1/2 of what rank 0 has by itself"),
    ("waits in send", _answer(SendsAndWaits), _1 + "`send` waits for its sum"),
    ("the mean of two", _answer(ByTwo, Counting2), _2 + "is 1.5 times what is expected"),
    (
        "forgets the pass before",
        _answer(Forgets, Counting3),
        _2 + "without zero_grad: the gradient",
    ),
    ("an all-reduce for each", _answer(EachByItself), _1 + "`all_reduce` is called 6 times"),
    ("own weights", _answer(ddp=OwnWeights), _2 + "rank 1 of 3.*still what this rank began with"),
    ("no buffers", _answer(ddp=ParametersOnly), _2 + "after the constructor `shift`"),
    ("no whole numbers", _answer(ddp=NoWholeNumbers), _2 + "after the constructor `count`"),
    ("one cap for all", _answer(ddp=OneCap), _3 + "fewer all-reduce calls than expected"),
    ("whatever is full", _answer(ddp=FirstFull), _2 + "rank 1.*bucket 1 is sent before bucket 0"),
    ("all at the end", _answer(ddp=AtTheEnd), _2 + "nothing travels while backward runs"),
    ("too early", _answer(ddp=TooEarly), _2 + "bucket 0 is sent when 1 of its 2 gradients"),
    ("waits at once", _answer(ddp=WaitsAtOnce), _2 + "waits for a sum before the last gradient"),
    ("its own all-reduce", _answer(ddp=TorchsOwn), _2 + "nothing is given to the `all_reduce`"),
    (
        "no end",
        _answer(ddp=NeverFinishes),
        _2 + "backward.* returns, and DDP waits for 0 of 3 sums",
    ),
    ("one update only", _answer(ddp=OneUpdate), _2 + "after one backward pass DDP is not ready"),
    ("hooks before", _answer(ddp=BeforeItIsAdded), _2 + "raised|of its 2 gradients are there"),
    ("a hook for each use", _answer(ddp=PerUse), _2 + "raised"),
    ("no_sync ignored", _answer(ddp=Loud), _3 + "a backward pass inside no_sync.. sends 4 times"),
    ("quiet after an error", _answer(ddp=NotAfterAnError), _3 + "after an error inside no_sync"),
    ("swallows errors", _answer(ddp=SwallowsErrors), _3 + "does not come out of it"),
    ("quiet for ever", _answer(ddp=QuietForEver), _3 + "is what rank 0 has by itself"),
    (
        "zeros, and nothing is said",
        _answer(ddp=Silent),
        _4 + "rank 1 of 2.*raises nothing, expected a",
    ),
    ("whole buckets only", _answer(ddp=WholeBucketsOnly), _4 + "all in one bucket, does not use"),
    ("another error", _answer(ddp=AnotherError), _4 + "raises ValueError, expected a RuntimeError"),
    ("names all", _answer(ddp=NamesAll), _4 + "the error names left.weight as well"),
    ("nothing for nobody", _answer(ddp=NothingForNobody), _4 + "by no rank: .* is None"),
    ("an error without names", _answer(ddp=WithoutNames), _4 + "does not name right.weight"),
    (
        "the others wait",
        _answer(ddp=NobodyIsToldOfZeros),
        _4 + "rank 0 (is in allreduce|lost its connection to rank 1, which had returned)",
    ),
    ("forgets what was kept", _answer(ddp=ForgetsWhatWasKept), _4 + "used inside no_sync.. only"),
    ("not on a ring", _answer(ddp=RingLess), _5 + "on a ring: the gradient of"),
]
