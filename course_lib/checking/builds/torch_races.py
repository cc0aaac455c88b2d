"""The races of the builds: what is timed of the learner's version, and torch's own beside it."""

import json
import tempfile
import zlib
from collections.abc import Callable
from functools import partial
from pathlib import Path
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


def _eight_bit(parts: SimpleNamespace) -> Any:
    weight = _weights(300, 300)
    weight.grad = torch.randn(300, 300, generator=torch.Generator().manual_seed(0))
    return parts.AdamW8bit([weight], lr=3e-3).step


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


# Chapters 10 to 17


def _vocabulary(parts: SimpleNamespace) -> Callable[[], object]:
    region = later("course_lib.scratch.tensor.region").TensorParallel()
    logits, labels = torch.ones(1, 256, 4096, requires_grad=True), torch.arange(256).view(1, 256)
    return lambda: _both_passes(parts.vocab_parallel_cross_entropy, logits, labels, region)


def _mlp(cut: Callable[[Any], object]) -> Callable[[], object]:
    mlp = nn.Sequential(nn.Linear(256, 1024), nn.GELU(), nn.Linear(1024, 256))
    x = torch.ones(512, 256, requires_grad=True)
    cut(mlp)
    return lambda: _both_passes(mlp, x)


def _by_a_pair(parts: SimpleNamespace) -> Callable[[], object]:
    pair = later("course_lib.chapters.ch10_tensor_parallelism.builds.tensor").pair_of(parts)
    region = later("course_lib.scratch.tensor.region").TensorParallel(pair=pair)

    def cut(mlp: Any) -> None:
        mlp[0], mlp[2] = pair.column(mlp[0], region), pair.row(mlp[2], region)

    return _mlp(cut)


def _parallelized() -> Callable[[], object]:
    parallel = later("torch.distributed.tensor.parallel")
    plan = {"0": parallel.ColwiseParallel(), "2": parallel.RowwiseParallel()}
    return _mlp(lambda mlp: parallel.parallelize_module(mlp, _mesh(dist.get_world_size()), plan))


def _mesh(*sizes: int, **names: Any) -> Any:
    return later("torch.distributed.device_mesh").init_device_mesh("cpu", sizes, **names)


def _sequence(parts: SimpleNamespace) -> Callable[[], object]:
    x = torch.ones(4, 256, 512, requires_grad=True)
    return lambda: _both_passes(
        lambda x: parts.SumScatter.apply(parts.Gather.apply(x, None), None), x
    )


def _loss_parallel() -> Callable[[], object]:
    tensors, mesh = later("torch.distributed.tensor"), _mesh(dist.get_world_size())
    local, labels = torch.ones(256, 4096, requires_grad=True), torch.arange(256)

    def once() -> None:
        with later("torch.distributed.tensor.parallel").loss_parallel():
            scores = tensors.DTensor.from_local(local, mesh, [tensors.Shard(1)])
            _both_passes(nn.functional.cross_entropy, scores, labels)

    return once


_STAGES, _COUNT = 2, 8


def _race_part() -> Any:
    """A stage of 4 layers, and 8 micro-batches of 2 samples."""
    torch.manual_seed(0)
    text = torch.randint(64, (2 * _COUNT, 65))
    window = list(zip(text[:, :-1].chunk(_COUNT), text[:, 1:].chunk(_COUNT), strict=True))
    model, stage = _gpt.GPT(4, 64, 4, 64, 64), later("course_lib.scratch.pipeline.stage")
    (piece,) = stage.cut(model, [2, 2], dist.get_rank(), _STAGES)
    return piece, window


def _pipeline(parts: SimpleNamespace) -> Callable[[], object]:
    piece, window = _race_part()
    group = later("course_lib.scratch.pipeline.stage").wires([range(_STAGES)])
    orders = later("course_lib.theory.pipelines.schedules").schedule("1f1b", _STAGES, _COUNT).orders
    pipeline = parts.Pipeline([piece], orders, group)
    return lambda: pipeline.run(window)


def _torchs_pipeline() -> Callable[[], object]:
    piece, window = _race_part()
    inputs, labels = (torch.cat(parts) for parts in zip(*window, strict=True))
    pipelining = later("torch.distributed.pipelining")
    stage = pipelining.PipelineStage(piece, dist.get_rank(), _STAGES, torch.device("cpu"))
    loss = nn.functional.cross_entropy
    steps = pipelining.Schedule1F1B(
        stage, _COUNT, loss_fn=lambda y, wanted: loss(y.flatten(0, 1), wanted.flatten())
    )
    return lambda: steps.step(inputs) if piece.first else steps.step(target=labels)


def _experts(parts: SimpleNamespace) -> Callable[[], object]:
    ours = parts.Dispatcher(dist.group.WORLD)
    torch.manual_seed(dist.get_rank())
    tokens = torch.randn(2048, 256, requires_grad=True)
    chosen, weights = torch.rand(2048, 4).topk(2).indices, torch.full((2048, 2), 0.5)

    def passed() -> Any:
        rows = ours.dispatch(tokens, chosen, ours.count(chosen, 4))
        return ours.combine(rows, weights)

    return lambda: _both_passes(passed)


def _on_torchs_all_to_all() -> Callable[[], object]:
    """The course's Dispatcher on torch's own all-to-all."""
    collectives = later("torch.distributed._functional_collectives")
    dispatcher = later("course_lib.scratch.experts.all_to_all").Dispatcher

    def all_to_all(self: Any, rows: Any, sent: Any, received: Any) -> Any:
        return collectives.all_to_all_single_autograd(rows, received, sent, self.group)

    on_torch = type("OnTorch", (dispatcher,), {"all_to_all": all_to_all})
    return _experts(SimpleNamespace(Dispatcher=on_torch))


def _own_slice() -> tuple[Any, Any, Any]:
    """4 heads of 512 zig-zag tokens on each rank: queries; keys and values; the ring."""
    ring = later("course_lib.scratch.context.slices").SequenceRing(dist.group.WORLD, True)
    q, k, v = torch.randn(3, 1, 4, 512, 32)
    return q, torch.stack([k, v]), ring


def _gathered_attention() -> Callable[[], object]:
    """All keys and values on every rank, and torch's attention with a mask."""
    q, kv, ring = _own_slice()
    places, attention = ring.places(ring.ranks * 512), nn.functional.scaled_dot_product_attention
    mask = places[:, None] >= _wire.all_gather(places)

    def once() -> None:
        k, v = _wire.all_gather(kv.movedim(-2, 0)).movedim(0, -2)
        attention(q, k, v, attn_mask=mask)

    return once


def _server(parts: SimpleNamespace) -> Callable[[], object]:
    """One server and one trainer."""
    messages = later("course_lib.scratch.parameter_server.messages").Messages(dist.group.WORLD)
    if dist.get_rank() == 0:
        server = parts.ParameterServer(torch.zeros(10_000, 64), 0.1, [1], messages)
        serve: Callable[[], object] = server.serve_together
        return serve
    ids = torch.randint(0, 10_000, (2000,), generator=torch.Generator().manual_seed(0))
    remote = parts.RemoteTable(64, [0], messages)
    return lambda: remote.push(remote.pull(ids))


def _reshard(parts: SimpleNamespace) -> Callable[[], object]:
    """A checkpoint of a million parameters, which a rank writes as 3 would."""
    inside = later("course_lib.chapters.ch15_launchers_and_recovery.builds.reshard").launch_folder()
    layout, folder = {"weight": [1000, 1000]}, Path(tempfile.mkdtemp(dir=inside)) / "step-00000004"
    folder.mkdir()
    entries = []
    for rank in range(3):
        columns = 10**6 * (rank + 1) // 3 - 10**6 * rank // 3
        data = torch.ones(3, columns).numpy().tobytes()
        (folder / f"rank{rank}.shard").write_bytes(data)
        entries.append({"bytes": len(data), "crc32": zlib.crc32(data)})
    manifest = {"step": 4, "layout": layout, "shards": entries}
    (folder / "manifest.json").write_text(json.dumps(manifest))
    dist.barrier()
    return lambda: parts.load_shard(folder, layout)


def _shared_rate(parts: SimpleNamespace) -> Callable[[], object]:
    tasks = list(later("course_lib.chapters.ch17_capstone.builds.shared_rate").backward(40))
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
    "tensor": Race(
        "an MLP of 256 and 1024 features, 512 tokens, both passes", _by_a_pair, _parallelized
    ),
    "sequence": Race("into and out of a pair, 1024 tokens of 512 features, both passes", _sequence),
    "vocabulary": Race(
        "the loss of 256 tokens, 4096 words a rank, both passes", _vocabulary, _loss_parallel
    ),
    "pipeline": Race("one update of 1F1B, 8 micro-batches", _pipeline, _torchs_pipeline),
    "experts": Race(
        "2048 tokens to 2 of 4 experts and back, with gradients", _experts, _on_torchs_all_to_all
    ),
    "ring_attention": Race(
        "forward pass of 1024 tokens, 4 heads",
        lambda parts: partial(parts.ring_forward, *_own_slice()),
        _gathered_attention,
    ),
    "mesh": Race(
        "a mesh of pp 2 x dp 1 x tp 2 with its groups",
        lambda parts: lambda: parts.Mesh(dp=1, tp=2, pp=2),
        lambda: lambda: _mesh(2, 1, 2, mesh_dim_names=("pp", "dp", "tp")),
        ranks=4,
    ),
    "server": Race("an update of 2000 draws from 10,000 rows of 64, in step", _server),
    "reshard": Race("12 MB of states that 3 ranks saved, loaded", _reshard),
    "shared_rate": Race("a backward pass of 40 layers and its messages", _shared_rate, ranks=1),
}
