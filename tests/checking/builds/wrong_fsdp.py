"""FSDPs that the check must refuse: (what was thought, answer, words of the refusal)."""

import torch
from torch import nn

from course_lib.scratch import wire
from course_lib.scratch.fsdp import hooks, mini


def _unit(**changed):
    """The course's unit with some methods changed."""
    kept = {name: value for name, value in vars(mini.FSDPUnit).items() if not _is_slot(name)}
    return type("FSDPUnit", (), kept | changed)


def _fsdp(unit, **changed):
    kept = {name: value for name, value in vars(mini.FSDP).items() if not _is_slot(name)}
    return type("FSDP", (hooks.Hooked,), kept | {"unit": unit} | changed)


def _is_slot(name):
    return name in ("__dict__", "__weakref__")


def _with(unit=None, **changed):
    unit = unit or mini.FSDPUnit
    return [unit, _fsdp(unit, **changed)]


class _Flat:
    """A unit written in another form, in which one thing can go wrong."""

    def __init__(self, parameters, device, group=None, dtype=torch.float32):
        import torch.distributed as dist

        self.group, self.rank = group, dist.get_rank(group)
        self.ranks = dist.get_world_size(group)
        self.shapes = {name: p.shape for name, p in parameters.items()}
        flat = torch.cat([p.detach().flatten() for p in parameters.values()])
        self.size = len(flat) + -len(flat) % self.ranks
        self.shard = nn.Parameter(self.cut(flat).to(device))
        self.whole = torch.empty(self.size, dtype=dtype, device=device)
        self.whole.untyped_storage().resize_(0)
        self.gradient = self.gathering = self.reduction = None

    def cut(self, flat):
        padded = nn.functional.pad(flat, (0, self.size - len(flat)))
        return padded.view(self.ranks, -1)[self.rank].clone()

    def views(self, whole):
        found, start = {}, 0
        for name, shape in self.shapes.items():
            found[name] = whole[start : start + shape.numel()].view(shape)
            start += shape.numel()
        return found

    def start_gather(self):
        if self.whole.untyped_storage().nbytes():
            return
        self.whole.untyped_storage().resize_(self.whole.nbytes)
        own = self.shard.detach().to(self.whole.dtype)
        self.gathering = wire.start_all_gather(self.whole, own, self.group)

    def gather(self):
        self.start_gather()
        if self.gathering is not None:
            self.gathering.wait()
        self.gathering = None

    def free(self):
        if self.gathering is not None:
            self.gathering.wait()
            self.gathering = None
        self.whole.untyped_storage().resize_(0)

    def add_gradients(self, gradients):
        flat = torch.cat([g.flatten().float() for g in gradients])
        flat = nn.functional.pad(flat, (0, self.size - len(flat)))
        self.gradient = flat if self.gradient is None else self.gradient + flat

    def start_reduction(self):
        part = torch.empty_like(self.shard).detach()
        self.sent = self.gradient / self.ranks
        self.reduction = part, wire.start_reduce_scatter(part, self.sent, self.group)
        self.gradient = None

    def finish_reduction(self):
        if self.reduction is None:
            return
        part, work = self.reduction
        work.wait()
        self.shard.grad = part if self.shard.grad is None else self.shard.grad + part
        self.reduction = self.sent = None


def _flat(**changed):
    kept = {name: value for name, value in vars(_Flat).items() if not _is_slot(name)}
    return type("FSDPUnit", (), kept | changed)


def _named(kind):
    kind.__name__ = "FSDPUnit"
    return kind


def _unequal(self, flat):
    return flat.tensor_split(self.ranks)[self.rank].clone()


def _view(self, flat):
    padded = nn.functional.pad(flat, (0, self.size - len(flat)))
    return padded.view(self.ranks, -1)[self.rank]


def _next_part(self, flat):
    padded = nn.functional.pad(flat, (0, self.size - len(flat)))
    return padded.view(self.ranks, -1)[(self.rank + 1) % self.ranks].clone()


def _keeps(self):
    """Frees nothing."""
    if self.gathering is not None:
        self.gather()


def _new_tensor(self):
    """A new tensor, so what autograd has saved stays empty."""
    self.whole = torch.empty(0)


def _gathers_always(self):
    self.whole.untyped_storage().resize_(self.whole.nbytes)
    own = self.shard.detach().to(self.whole.dtype)
    self.gathering = wire.start_all_gather(self.whole, own, self.group)


def _waits(self):
    _Flat.start_gather(self)
    if self.gathering is not None:
        self.gathering.wait()
        self.gathering = None


def _never_waits(self):
    """Takes a gather that has begun for one that is done."""
    self.start_gather()
    self.gathering = None


def _sum(self):
    part = torch.empty_like(self.shard).detach()
    self.sent = self.gradient
    self.reduction = part, wire.start_reduce_scatter(part, self.sent, self.group)
    self.gradient = None


def _overwrites(self):
    if self.reduction is not None:
        part, work = self.reduction
        work.wait()
        self.shard.grad, self.reduction = part, None


def _only_the_last(self, gradients):
    flat = torch.cat([g.flatten().float() for g in gradients])
    self.gradient = nn.functional.pad(flat, (0, self.size - len(flat)))


def _keeps_gradient(self):
    """Does not let go of what it has reduced."""
    part = torch.empty_like(self.shard).detach()
    self.sent = self.gradient / self.ranks
    self.reduction = part, wire.start_reduce_scatter(part, self.sent, self.group)


def _nothing(self, number):
    """Leaves everything whole."""
    self.last = number


def _no_second_gather(self, number):
    """Hopes that it is still there."""
    self.last = number


def _frees_all(self, number):
    self.units[number].free()


def _fetches_after(self, number):
    if self.frees(number):
        self.units[number].free()
    self.fetch(number + 1)


def _gathers_only(self, number):
    self.units[number].gather()


def _fetches_forward_only(self, number):
    self.units[number].gather()


def _fetches_all(self, number):
    if self.prefetch:
        for unit in self.units:
            unit.start_gather()


def _always_reduces(self, number, gradients):
    self.units[number].free()
    for unit in self.units:
        unit.finish_reduction()
    self.units[number].add_gradients(gradients)
    self.units[number].start_reduction()
    if number == 0:
        self.units[0].finish_reduction()


def _forgets_the_last(self, number, gradients):
    self.units[number].free()
    for unit in self.units:
        unit.finish_reduction()
    self.units[number].add_gradients(gradients)
    if self.sync:
        self.units[number].start_reduction()


def _frees_no_weights(self, number, gradients):
    for unit in self.units:
        unit.finish_reduction()
    self.units[number].add_gradients(gradients)
    if self.sync:
        self.units[number].start_reduction()
    if number == 0:
        self.units[0].finish_reduction()


def _gradient_like_whole(self, gradients):
    flat = torch.cat([g.flatten().to(self.whole.dtype) for g in gradients])
    flat = nn.functional.pad(flat, (0, self.size - len(flat)))
    self.gradient = flat if self.gradient is None else self.gradient + flat


def _adds_to_the_first(self, gradients):
    """The second call adds into what autograd gave to the first one."""
    if self.gradient is None:
        self.kept = [g.float() for g in gradients]
    else:
        for one, more in zip(self.kept, gradients, strict=True):
            one += more
        gradients[0].add_(1)
    flat = torch.cat([g.flatten() for g in self.kept])
    self.gradient = nn.functional.pad(flat, (0, self.size - len(flat)))


def _views_of_its_own(self, whole):
    return _Flat.views(self, self.whole)


def _gathers_over_all(self):
    group, self.group = self.group, None
    _Flat.start_gather(self)
    self.group = group


def _gathers_fp32(self):
    """All parts in fp32, and rounded afterwards."""
    if self.whole.untyped_storage().nbytes():
        return
    self.whole.untyped_storage().resize_(self.whole.nbytes)
    self.wide = torch.empty(self.size)
    work = wire.start_all_gather(self.wide, self.shard.detach(), self.group)
    self.gathering = _Rounded(work, self)


class _Rounded:
    def __init__(self, work, unit):
        self.work, self.unit = work, unit

    def wait(self):
        self.work.wait()
        self.unit.whole.copy_(self.unit.wide)
        self.unit.wide = None


class _Copied(_Flat):
    """A whole copy in fp32 stays."""

    def start_gather(self):
        super().start_gather()
        if not hasattr(self, "wide"):
            self.wide = torch.empty(self.size)


class _RankOfAll(_Flat):
    """Its number among all ranks, not in the group."""

    def cut(self, flat):
        import torch.distributed as dist

        self.rank = dist.get_rank() % self.ranks
        return super().cut(flat)


def _reduces_over_all(self):
    group, self.group = self.group, None
    _Flat.start_reduction(self)
    self.group = group


def _reduces_and_waits(self):
    _Flat.start_reduction(self)
    self.reduction[1].wait()


def _part_of_the_whole(self):
    """The part is a view of the whole gradient."""
    self.sent = self.gradient / self.ranks
    part = self.sent.view(self.ranks, -1)[self.rank]
    self.reduction = part, wire.start_reduce_scatter(part, self.sent.clone(), self.group)
    self.gradient = None


def _halves(self):
    part = torch.empty_like(self.shard).detach()
    self.sent = self.gradient / 2
    self.reduction = part, wire.start_reduce_scatter(part, self.sent, self.group)
    self.gradient = None


def _frees_at_once(self):
    """Does not wait for what fills it."""
    self.gathering = None
    self.whole.untyped_storage().resize_(0)


def _all_at_unit_0(self, number, gradients):
    self.units[number].free()
    self.units[number].add_gradients(gradients)
    if self.sync:
        self.units[number].start_reduction()
    for unit in self.units if number == 0 else ():
        unit.finish_reduction()


def _finishes_at_once(self, number, gradients):
    self.units[number].free()
    self.units[number].add_gradients(gradients)
    if self.sync:
        self.units[number].start_reduction()
        self.units[number].finish_reduction()


def _always_frees_blocks(self, number):
    if number:
        self.units[number].free()


def _fetches_and_waits(self, number):
    if self.prefetch and 0 <= number < len(self.units):
        self.units[number].gather()


def _fetches_the_last(self, number):
    """Unit -1 is the last one."""
    if self.prefetch and number < len(self.units):
        self.units[number].start_gather()


class _Lists(_Flat):
    """Right: torch's own calls, a list of parts, and the mean taken at the end."""

    def start_gather(self):
        import torch.distributed as dist

        if not self.whole.untyped_storage().nbytes():
            self.whole.untyped_storage().resize_(self.whole.nbytes)
            parts = list(self.whole.chunk(self.ranks))
            own = self.shard.detach().to(self.whole.dtype)
            self.gathering = dist.all_gather(parts, own, group=self.group, async_op=True)

    def start_reduction(self):
        import torch.distributed as dist

        part = torch.empty_like(self.shard).detach()
        pieces = [piece.contiguous() for piece in self.gradient.chunk(self.ranks)]
        work = dist.reduce_scatter(part, pieces, group=self.group, async_op=True)
        self.reduction, self.gradient = (part, work), None

    def finish_reduction(self):
        if self.reduction:
            self.reduction[1].wait()
            part = self.reduction[0] / self.ranks
            if self.shard.grad is not None:
                part += self.shard.grad
            self.shard.grad, self.reduction = part, None


class _KeepsAll(_Flat):
    """Beside the shard, all parameters."""

    def __init__(self, parameters, *given):
        super().__init__(parameters, *given)
        self.parameters = dict(parameters)


def _takes_the_first(self, gradients):
    """A single gradient that fits is the vector itself."""
    if self.gradient is None and len(gradients) == 1 and gradients[0].numel() == self.size:
        self.gradient = gradients[0].float().flatten()
    elif len(gradients) == 1:
        self.gradient += gradients[0].flatten()
    else:
        _Flat.add_gradients(self, gradients)


_UNIT, _STEP, _AHEAD, _ACCUMULATED = (f"step {n} of 4.*" for n in (1, 2, 3, 4))
RIGHT = [("another form", _with(_flat())), ("torch's own calls", _with(_named(_Lists)))]
WRONG = [
    ("the parameters as well", _with(_named(_KeepsAll)), _UNIT + "keeps the parameters"),
    (
        "a gradient as the sum",
        _with(_flat(add_gradients=_takes_the_first)),
        _STEP + "has changed the gradients",
    ),
    (
        "shards of unequal length",
        _with(_flat(cut=_unequal)),
        _UNIT + r"rank 1 of 2, 19 numbers: the shard has shape \(9,\), expected \(10,\)",
    ),
    ("the next rank's part", _with(_flat(cut=_next_part)), _UNIT + "the shard is the part of rank"),
    ("a view as shard", _with(_flat(cut=_view)), _UNIT + "keeps 80 bytes alive, expected 40"),
    ("frees nothing", _with(_flat(free=_keeps)), _UNIT + "after free whole has 80 bytes"),
    (
        "a new tensor when freed",
        _with(_flat(free=_new_tensor)),
        _UNIT + r"whole has shape \(0,\), expected \(20,\)",
    ),
    (
        "gathers what is there",
        _with(_flat(start_gather=_gathers_always)),
        _UNIT + "makes more all-gather calls.*here already",
    ),
    ("never waits", _with(_flat(gather=_never_waits)), _UNIT + "nobody waits for it"),
    (
        "the sum",
        _with(_flat(start_reduction=_sum)),
        _STEP + "is 3 times what is expected: the sum over ranks",
    ),
    ("no free after forward", _with(after_forward=_nothing), _STEP + "something is not freed"),
    ("frees the root as well", _with(after_forward=_frees_all), _STEP + "more all-gather calls"),
    (
        "gathers only in forward",
        _with(before_backward=_no_second_gather),
        _STEP + "when block 2 computes backward, its weights are not there",
    ),
    (
        "keeps weights after backward",
        _with(after_backward=_frees_no_weights),
        _STEP + "while block 1 computes backward, whole units take.*not freed",
    ),
    (
        "does not finish the last reduction",
        _with(after_backward=_forgets_the_last),
        _STEP + "the shard of unit 0 has no gradient",
    ),
    (
        "waits where it starts",
        _with(_flat(start_gather=_waits)),
        _UNIT + "start_gather waits for its all-gather",
    ),
    ("frees under a gather", _with(_flat(free=_frees_at_once)), _UNIT + "still filling"),
    ("views of its own", _with(_flat(views=_views_of_its_own)), _UNIT + "views of a vector"),
    (
        "gathers over all ranks",
        _with(_flat(start_gather=_gathers_over_all)),
        _UNIT + "in a group of ranks 0 and 2",
    ),
    (
        "its number among all",
        _with(_named(_RankOfAll)),
        _UNIT + "in a group.*(part of rank|differs)",
    ),
    (
        "gathers in fp32",
        _with(_flat(start_gather=_gathers_fp32)),
        _UNIT + "rank 0 sends more bytes by all-gather.*gathered in bf16",
    ),
    ("a whole copy", _with(_named(_Copied)), _STEP + "bytes stay beside shards"),
    (
        "gradients in whole's dtype",
        _with(_flat(add_gradients=_gradient_like_whole)),
        _STEP + "bfloat16, expected fp32|differs in",
    ),
    (
        "changes what it is given",
        _with(_flat(add_gradients=_adds_to_the_first)),
        _STEP + "has changed the gradients",
    ),
    (
        "reduces over all ranks",
        _with(_flat(start_reduction=_reduces_over_all)),
        _STEP + "in a group of ranks 0 and 2",
    ),
    (
        "divides by 2",
        _with(_flat(start_reduction=_halves)),
        _STEP + "1.5 times what is expected",
    ),
    (
        "waits for its reduction",
        _with(_flat(start_reduction=_reduces_and_waits)),
        _STEP + "start_reduction waits",
    ),
    (
        "a part of the whole",
        _with(_flat(start_reduction=_part_of_the_whole)),
        _STEP + "keeps a whole gradient in memory",
    ),
    (
        "overwrites",
        _with(_flat(finish_reduction=_overwrites)),
        _STEP + "that of the latest reduction alone",
    ),
    ("all at unit 0", _with(after_backward=_all_at_unit_0), _STEP + "4 reductions are under way"),
    (
        "finishes at once",
        _with(after_backward=_finishes_at_once),
        _STEP + "has been waited for already",
    ),
    (
        "keeps what it has reduced",
        _with(_flat(start_reduction=_keeps_gradient)),
        _STEP + "to one that has been reduced already",
    ),
    ("unit -1", _with(fetch=_fetches_the_last), _AHEAD + "none has this number, -1"),
    ("fetches and waits", _with(fetch=_fetches_and_waits), _AHEAD + "has been waited for already"),
    (
        "frees whole blocks",
        _with(after_forward=_always_frees_blocks),
        _ACCUMULATED + "more all-gather calls than expected: reshard = False",
    ),
    (
        "asks after computing",
        _with(before_forward=_gathers_only, after_forward=_fetches_after),
        _AHEAD + "when block 0 computes forward, the gather of the unit that comes next",
    ),
    (
        "no prefetch in backward",
        _with(before_backward=_fetches_forward_only),
        _AHEAD + "when block 2 computes backward, the gather",
    ),
    ("fetches everything", _with(fetch=_fetches_all), _AHEAD + "comes too early"),
    (
        "reduces every time",
        _with(after_backward=_always_reduces),
        _ACCUMULATED + "with sync = False gradients are reduced all the same",
    ),
    (
        "only the last micro-batch",
        _with(_flat(add_gradients=_only_the_last)),
        _STEP + "added to another is that of the latest call alone",
    ),
]
