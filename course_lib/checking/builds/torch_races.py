"""The races of the builds: what is timed of the learner's version, and torch's own beside it."""

from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

from course_lib.checking.builds.compare import dist, later, nn, torch
from course_lib.checking.races import Race

_gpt, _peers, _wire = (
    later(f"course_lib.scratch.{name}") for name in ("gpt", "collectives.peers", "wire")
)
_fsdp, _parallel = later("torch.distributed.fsdp"), later("torch.nn.parallel")


def _both_passes(model: Any, *inputs: Any) -> None:
    model(*inputs).sum().backward()


# Chapters 2 to 4


def _accumulation(parts: SimpleNamespace) -> Callable[[], object]:
    torch.manual_seed(0)
    small = _gpt.GPT(layers=2, hidden=64, heads=4, vocab=64, context=32)
    model = later("course_lib.scratch.replicas.ddp").DDP(small)
    window = [(inputs, labels) for inputs, labels in torch.randint(0, 64, (4, 2, 4, 32))]
    return lambda: (model.zero_grad(), parts.accumulate_ddp(model, window))


def _weights(*shape: int, dtype: Any = None) -> Any:
    weight = nn.Parameter(torch.ones(*shape, dtype=dtype))
    weight.grad = torch.ones_like(weight)
    return weight


def _adamw(*shape: int, lr: float) -> Callable[[], object]:
    """torch's AdamW in fp32: it keeps no master copy, and has no moments of 8 bits."""
    return torch.optim.AdamW([_weights(*shape)], lr=lr, fused=True).step


def _eight_bit(parts: SimpleNamespace) -> Callable[[], object]:
    weight = _weights(300, 300)
    weight.grad = torch.randn(300, 300, generator=torch.Generator().manual_seed(0))
    step: Callable[[], object] = parts.AdamW8bit([weight], lr=3e-3).step
    return step


def _blocks() -> tuple[Any, Any]:
    torch.manual_seed(0)
    segment = nn.Sequential(*(_gpt.Block(hidden=64, heads=4) for _ in range(2)))
    return segment, torch.randn(4, 64, 64, requires_grad=True)


def _checkpointing(parts: SimpleNamespace) -> Callable[[], object]:
    segment, x = _blocks()
    inputs = segment, x, *segment.parameters()
    return lambda: _both_passes(parts.Checkpoint.apply, *inputs)


def _torchs_checkpoint() -> Callable[[], object]:
    segment, x = _blocks()
    checkpoint = later("torch.utils.checkpoint").checkpoint
    return lambda: checkpoint(segment, x, use_reentrant=False).sum().backward()


# Chapters 6 to 9


def _ring(parts: SimpleNamespace) -> Callable[[], object]:
    peers, whole = _peers.Peers(), torch.ones(4_000_000)
    scatter, gather = parts.ring_reduce_scatter, parts.ring_all_gather
    return lambda: gather(scatter(whole, peers), peers, len(whole))


def _of_16_mb(work: Callable[[Any], object]) -> Callable[[], object]:
    whole = torch.ones(4_000_000)
    return lambda: work(whole)


def _layers() -> Any:
    """Four layers of a megabyte each."""
    torch.manual_seed(0)
    return nn.Sequential(*[nn.Linear(512, 512, bias=False) for _ in range(4)])


def _trained(model: Any, before: Any, after: Any = lambda: None) -> Callable[[], object]:
    x = torch.ones(32, 512)
    return lambda: (before(), model(x).sum().backward(), after())


def _ddp(ddp: Any) -> Callable[[], object]:
    return _trained(ddp, ddp.zero_grad)


def _torchs_ddp() -> Any:
    wrap = _parallel.DistributedDataParallel
    return wrap(_layers(), bucket_cap_mb=1, gradient_as_bucket_view=True)


def _zero(parts: SimpleNamespace) -> Callable[[], object]:
    """Stage 1, each layer a unit."""
    model = _layers()
    zero = parts.Zero(model, list(model), torch.optim.AdamW)
    return _trained(model, lambda: None, zero.step)


def _torchs_zero() -> Callable[[], object]:
    ddp = _parallel.DistributedDataParallel(_layers(), gradient_as_bucket_view=True)
    optimizer = later("torch.distributed.optim").ZeroRedundancyOptimizer(
        ddp.parameters(), torch.optim.AdamW, parameters_as_bucket_view=True
    )
    return _trained(ddp, lambda: None, lambda: (optimizer.step(), optimizer.zero_grad()))


def _small_gpt(shard: Callable[[Any], object]) -> Callable[[], object]:
    torch.manual_seed(0)
    model = _gpt.GPT(4, 128, 4, 128, 32)
    shard(model)
    tokens = torch.zeros(4, 32, dtype=torch.int64)
    return lambda: _both_passes(model, tokens)


def _fully_shard(model: Any) -> None:
    for block in model.blocks:
        _fsdp.fully_shard(block)
    _fsdp.fully_shard(model, reshard_after_forward=False)


# Chapters 10 and 17


def _vocabulary(parts: SimpleNamespace) -> Callable[[], object]:
    region = later("course_lib.scratch.tensor.region").TensorParallel()
    logits, labels = torch.ones(1, 256, 4096, requires_grad=True), torch.arange(256).view(1, 256)
    return lambda: _both_passes(parts.vocab_parallel_cross_entropy, logits, labels, region)


def _loss_parallel() -> Callable[[], object]:
    tensors = later("torch.distributed.tensor")
    mesh = later("torch.distributed.device_mesh").init_device_mesh("cpu", (dist.get_world_size(),))
    local, labels = torch.ones(256, 4096, requires_grad=True), torch.arange(256)

    def once() -> None:
        with later("torch.distributed.tensor.parallel").loss_parallel():
            scores = tensors.DTensor.from_local(local, mesh, [tensors.Shard(1)])
            _both_passes(nn.functional.cross_entropy, scores, labels)

    return once


def _shared_rate(parts: SimpleNamespace) -> Callable[[], object]:
    tasks = list(later("course_lib.checking.builds.shared_rate").backward(40))
    return lambda: parts.shared_timeline(tasks)


RACES = {
    "accumulation": Race("4 micro-batches of 128 tokens through a small GPT", _accumulation),
    "master_adamw": Race(
        "one update of a million bf16 weights (torch's: of fp32)",
        lambda parts: parts.MasterAdamW([_weights(1000, 1000, dtype=torch.bfloat16)], lr=1e-3).step,
        lambda: _adamw(1000, 1000, lr=1e-3),
        ranks=1,
    ),
    "eight_bit": Race(
        "one update of 90,000 weights (torch's: fp32)",
        _eight_bit,
        lambda: _adamw(300, 300, lr=3e-3),
        ranks=1,
    ),
    "checkpointing": Race(
        "two blocks of a GPT, forward and backward", _checkpointing, _torchs_checkpoint, ranks=1
    ),
    "ring": Race(
        "reduce-scatter and all-gather of 16 MB",
        _ring,
        lambda: _of_16_mb(lambda whole: _wire.all_gather(_wire.reduce_scatter(whole))),
    ),
    "tree": Race(
        "all-reduce of 16 MB",
        lambda parts: partial(parts.tree_all_reduce, torch.ones(4_000_000), _peers.Peers()),
        lambda: _of_16_mb(_wire.all_reduce),
    ),
    "ddp": Race(
        "a backward pass with 4 MB of gradients",
        lambda parts: _ddp(parts.DDP(_layers(), 2**20, 2**20)),
        lambda: _ddp(_torchs_ddp()),
    ),
    "zero": Race("an update of a million parameters", _zero, _torchs_zero),
    "fsdp": Race(
        "a GPT of 4 layers and 0.8 million parameters, both passes",
        lambda parts: _small_gpt(lambda model: parts.FSDP(model, list(model.blocks))),
        lambda: _small_gpt(_fully_shard),
    ),
    "vocabulary": Race(
        "the loss of 256 tokens, 4096 words a rank, both passes", _vocabulary, _loss_parallel
    ),
    "shared_rate": Race("a backward pass of 40 layers and its messages", _shared_rate, ranks=1),
}
