"""mini-FSDP: equal to one process, frees what it says, and says what went wrong."""

import gc

import pytest
import torch
from torch import nn
from torch.optim import optimizer as optimizers

from course_lib import launch
from course_lib.demos.shared.batch import mean_loss
from course_lib.demos.shared.training import Training
from course_lib.measure.gradients import relative_difference
from course_lib.measure.peak import log_memory
from course_lib.scratch.deferred_init import defer
from course_lib.scratch.flat_parameter import clip_shards
from course_lib.scratch.fsdp import FSDP
from course_lib.scratch.gpt import GPT, Block

TRAINING = Training("2x16x2", steps=3, batch=12, sequence=8)


def build(**options):
    model = TRAINING.build()
    return model, FSDP(model, model.blocks, **options)


def rows(batch, rank):
    return [part.chunk(rank.world)[rank.rank] for part in batch]


def largest_gap(found, expected):
    assert set(found) == set(expected)
    return max(relative_difference(found[name], expected[name]) for name in expected)


def momentum(parameters):
    """Not AdamW: its first updates are ±lr however small a gradient is, rounding included."""
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)


def one_process_weights():
    model = TRAINING.build()
    optimizer = momentum(model.parameters())
    for batch in TRAINING.batches():
        mean_loss(model, batch).backward()
        optimizer.step()
        optimizer.zero_grad()
    return dict(model.named_parameters())


def weights_after_training(options, accumulation):
    """Three updates, each rank's rows in pieces: the largest difference to one process."""
    rank = launch.init()
    model, fsdp = build(**options)
    optimizer = momentum(model.parameters())
    for batch in TRAINING.batches():
        pieces = zip(*[part.chunk(accumulation) for part in rows(batch, rank)], strict=True)
        for piece in pieces:
            (mean_loss(model, piece) / accumulation).backward()
        optimizer.step()
        optimizer.zero_grad()
    return largest_gap(fsdp.gathered(), one_process_weights())


@pytest.mark.parametrize(
    ("ranks", "options"),
    [(1, {}), (2, {}), (3, {}), (4, {}), (2, {"reshard": False}), (2, {"prefetch": False})],
)
def test_weights_after_three_updates_are_those_of_one_process(ranks, options):
    gaps = launch.run(weights_after_training, options, 1, ranks=ranks)
    assert max(gaps) < 1e-5


def test_gradient_accumulation():
    assert max(launch.run(weights_after_training, {}, 2, ranks=2)) < 1e-5


def bytes_alive():
    """Whole units alive before, between and after the passes."""
    rank = launch.init()
    model, fsdp = build()
    batch = rows(TRAINING.batches()[0], rank)
    found = [gathered_units(fsdp)]
    loss = mean_loss(model, batch)
    found.append(gathered_units(fsdp))
    loss.backward()
    found.append(gathered_units(fsdp))
    with torch.no_grad():
        mean_loss(model, batch)
    found.append(gathered_units(fsdp))
    return found


def gathered_units(fsdp):
    return [unit.whole.untyped_storage().nbytes() > 0 for unit in fsdp.units]


def test_only_the_root_lives_between_forward_and_backward():
    nothing, root = [False] * 3, [True, False, False]
    assert launch.run(bytes_alive, ranks=2)[0] == [nothing, root, nothing, nothing]


def evaluated_between_updates():
    """A pass without gradients sees the update before it, and leaves nothing old behind."""
    rank = launch.init()
    model, fsdp = build()
    optimizer = TRAINING.optimizer(list(model.parameters()))
    batch = rows(TRAINING.batches()[0], rank)
    losses = []
    for _ in range(3):
        with torch.no_grad():
            seen = float(mean_loss(model, batch))
        loss = mean_loss(model, batch)
        losses.append((seen, float(loss.detach())))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    mean_loss(model, batch).backward()
    unfinished = mean_loss(model, batch)  # its backward never comes: the root stays whole
    optimizer.step()
    whole = TRAINING.build()
    whole.load_state_dict(fsdp.gathered(), strict=False)
    latest = mean_loss(whole, batch), mean_loss(model, batch), unfinished
    return losses, [float(loss.detach()) for loss in latest]


def test_evaluation_between_updates():
    losses, (expected, latest, unfinished) = launch.run(evaluated_between_updates, ranks=2)[0]
    assert latest == pytest.approx(expected, rel=1e-6)
    assert latest < unfinished
    assert all(seen == trained for seen, trained in losses)
    assert losses[0] > losses[1] > losses[2]


def clipped(limit):
    rank, model = launch.init(), TRAINING.build()
    batch = TRAINING.batches()[0]
    mean_loss(model, batch).backward()
    norm = nn.utils.clip_grad_norm_(model.parameters(), limit)
    expected = {name: p.grad for name, p in model.named_parameters()}
    ours, fsdp = build()
    mean_loss(ours, rows(batch, rank)).backward()
    norms = float(norm), float(clip_shards(fsdp.shards, limit))
    return norms, largest_gap(fsdp.gathered(gradients=True), expected)


@pytest.mark.parametrize("limit", [0.1, 1e3])
def test_clipping_by_the_norm_over_all_ranks(limit):
    (expected, norm), gap = launch.run(clipped, limit, ranks=2)[0]
    assert norm == pytest.approx(expected, rel=1e-5)
    assert gap < 1e-5


def building_peaks():
    """Peak bytes while a model is built on meta and cut, and while it is built whole."""
    with log_memory() as log:
        deferred = defer(lambda: TRAINING.build("meta"))
        FSDP(deferred.model, deferred.model.blocks, device="cpu", weights=deferred.replay())
    with log_memory() as whole:
        build()
    return log.peak_bytes, whole.peak_bytes


def test_the_same_weights_from_the_meta_device_in_less_memory():
    deferred = defer(lambda: TRAINING.build("meta"))
    values = dict(deferred.replay())
    torch.manual_seed(TRAINING.seed)
    one = GPT(*TRAINING.size, 128, TRAINING.sequence)
    for name, parameter in deferred.model.named_parameters():
        assert parameter.is_meta
        assert torch.equal(values[parameter], one.get_parameter(name))
    less, more = launch.run(building_peaks, ranks=2)[0]
    assert less < 0.6 * more


class AddedFourTimes(torch.nn.Module):
    """An initialisation with an option: 1 + 4 · 2."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.empty(3))
        with torch.no_grad():
            self.weight.fill_(1.0).add_(2.0, alpha=4)


def test_a_deferred_call_keeps_its_options():
    ((_, values),) = defer(AddedFourTimes).replay()
    assert values.tolist() == [9.0] * 3


def half_precision():
    """Types of what computes, of the shards and of their gradients."""
    rank = launch.init()
    model, fsdp = build(dtype=torch.bfloat16)
    seen = []
    model.blocks[0].register_forward_hook(lambda *call: seen.append(call[2].dtype))
    mean_loss(model, rows(TRAINING.batches()[0], rank)).backward()
    return seen, {(shard.dtype, shard.grad.dtype) for shard in fsdp.shards}


def test_bf16_computes_and_fp32_stays():
    computed, kept = launch.run(half_precision, ranks=2)[0]
    assert computed == [torch.bfloat16]
    assert kept == {(torch.float32, torch.float32)}


class Shared(nn.Module):
    """Two blocks, one matrix in both."""

    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(Block(8, 2) for _ in range(2))
        self.blocks[1].attention.out.weight = self.blocks[0].attention.out.weight


def fault(name):
    model = TRAINING.build()
    optimizer = TRAINING.optimizer(list(model.parameters()))
    if name == "optimizer":
        FSDP(model, model.blocks)
        optimizer.step()
    if name == "meta":
        with torch.device("meta"):
            FSDP(model := TRAINING.build("meta"), model.blocks)
    if name == "shared":
        FSDP(shared := Shared(), shared.blocks)
    if name == "twice":
        model.blocks[1] = model.blocks[0]
        FSDP(model, model.blocks)
    if name == "frozen":
        model.blocks[1].norm1.bias.requires_grad_(False)
        FSDP(model, model.blocks)
    if name == "stranger":
        FSDP(model, [Block(8, 2)])


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("optimizer", "this AdamW holds parameters that are not shards .* build it after"),
        ("meta", r"parameter embedding.weight is on the meta device .* give weights="),
        ("shared", r"blocks.1.attention.out.weight is also blocks.0.attention.out.weight"),
        ("twice", r"parameter blocks.1.norm1.weight is also blocks.0.norm1.weight"),
        ("frozen", r"parameter blocks.1.norm1.bias is frozen .* take fully_shard"),
        ("stranger", "a Block in the list of units is no part of the model"),
    ],
)
def test_mistakes_get_one_sentence(name, message):
    with pytest.raises(launch.RankFailed, match=message):
        launch.run(fault, name, ranks=2)


def test_without_ranks():
    with pytest.raises(RuntimeError, match=r"needs a process group .* call launch.init\(\)"):
        build()


def hooks_of_torch():
    """Of all optimizers: before FSDP, while an old parameter is kept, and after its end."""
    model = TRAINING.build()
    kept = list(model.parameters())
    counts = [len(optimizers._global_optimizer_pre_hooks)]
    FSDP(model, model.blocks)
    counts.append(len(optimizers._global_optimizer_pre_hooks))
    momentum([torch.ones(1)]).step()  # another optimizer is none of its business
    kept.clear()
    gc.collect()
    return [*counts, len(optimizers._global_optimizer_pre_hooks)]


def test_optimizers_are_watched_only_while_there_is_something_to_refuse():
    assert launch.run(hooks_of_torch, ranks=1) == [[0, 1, 0]]
