# %% [raw] tags=["sitting"]
# question: Which settings of FSDP2 does your training need, and what does each cost?
# importance: 5
# difficulty: 3
# group: alone

# %% [markdown]
# # 9 FSDP2 in practice
#
# LLaMA-2 70B in fp32 takes 276 GB. In a node with eight ranks, `model = Llama(...)` builds it eight times, 2.2 TB of host memory, before FSDP can cut anything. How do you build it with PyTorch's
# FSDP2? Which precision, mesh, way of accumulating and state dict does your training need, and what does each cost? At the end of this sitting you can
#
# - build and fill a model that fits into no single memory, with PyTorch's FSDP2,
# - cut it inside a node and copy it between nodes, and count the messages of both,
# - accumulate, clip and save correctly with shards,
# - choose between DDP, ZeRO-1, hybrid and full sharding for a model, a cluster and its network.

# %%
import torch
from torch.distributed.checkpoint import state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

from course_lib import demos, expect, launch, measure, predict, scratch, style
from course_lib.chapters.ch09_fsdp import figures
from course_lib.demos.shared.training import Training, mean_loss, own_rows, rows_of
from course_lib.theory import Job, Layout, Recipe, gpu_memory, models, units

launch.warm_up()
torch.set_num_threads(1)

# %% [markdown]
# ## 9.4 Before the first step: building, precision, optimizer
#
# ### A model that fits nowhere
#
# **Deferred initialisation** (延迟初始化) builds the model on PyTorch's **meta device** (元设备), where tensors have a shape and no memory. FSDP cuts it there. Only then
# does each rank ask for memory, for its own part. `fully_shard(module)` makes a unit of a module. The calls go from the inside out: blocks first, then the model,
# which takes everything else as its root.

# %%
training = Training("4x64x4", batch=8, sequence=32)
layers = training.size[0]


def never_whole():
    """Bytes of this rank when FSDP2 has filled a model from meta, and the most until then."""
    launch.init()
    with torch.device("meta"):
        model = scratch.gpt.GPT(layers, hidden=64, heads=4, vocab=128, context=32)
    for block in model.blocks:
        fully_shard(block)
    fully_shard(model)
    with measure.peak.log_memory() as log:
        model.to_empty(device="cpu")
        for weight in model.parameters():
            weight.detach().to_local().zero_()  # or read this rank's part from a file
    return log.timeline[-1], log.peak_bytes


# %%
parameters = training.shape().parameters().total
now, most = launch.run(never_whole, ranks=2)[0]
expect(4 * parameters / 2, now, label="filled, on a rank", unit="B")
assert most < 1.05 * now

# %% [markdown]
# Half of the model, to the byte, and never 5 % more. The optimizer must come after the cut. If it is built before, it holds the old, whole parameters, which never get a
# gradient again. An optimizer skips such parameters without a warning, and the loss stays where it is (exercise 9.8).
#
# ### Mixed precision
#
# Shards stay fp32 and are the master copy. Before a gather each rank casts its own part to bf16, which halves the bytes on the network and the memory for whole layers. Gradients
# are computed in bf16 and summed over the ranks in fp32, because a long sum in bf16 loses digits.
#
# | | `MixedPrecisionPolicy` | usual |
# |---|---|---|
# | gathered and computed in | `param_dtype` | `torch.bfloat16` |
# | reduced in | `reduce_dtype` | `torch.float32` |
# | shards and optimizer | as the model was built | fp32 |


# %%
def cut_model(**options):
    """This rank and our GPT: each block a unit, and the root."""
    rank, model = launch.init(), training.build()
    for block in model.blocks:
        fully_shard(block, **options)
    return rank, fully_shard(model, **options)


def own_loss(rank, model):
    """The loss of this rank's samples."""
    return mean_loss(model, own_rows(training.batches()[0], rank))


# %%
def step(policy):
    """One step: a weight's class, shape and local shape, and the collectives."""
    rank, model = cut_model(mp_policy=policy)
    with measure.wire.log_wire() as log:
        own_loss(rank, model).backward()
    weight = model.blocks[0].mlp[0].weight
    return type(weight).__name__, weight.shape, weight.to_local().shape, log.sent()


# %%
in_bf16 = MixedPrecisionPolicy(torch.bfloat16, torch.float32)
kind, shape, local_shape, sent = launch.run(step, MixedPrecisionPolicy(), ranks=2)[0]
*_, half = launch.run(step, in_bf16, ranks=2)[0]
expect(sent["all-gather"][1] / 2, half["all-gather"][1], label="gathered", unit="B")
expect(sent["reduce-scatter"][1], half["reduce-scatter"][1], label="reduced", unit="B")

# %% [markdown]
# The gathers carry half of the bytes, the reductions as many as before.
#
# ### One weight, one unit
#
# GPT's head is its embedding: a **shared parameter** (共享参数). If embedding and head were two units, one would free the weight while the other computes with it. Put both into one unit, or leave
# both in the root. The course's version refuses anything else:

# %%
model = training.build()
try:
    scratch.flat_parameter.parameters_of_units(model, [model.embedding, model.head])
except ValueError as refusal:
    print(refusal)

# %% [markdown]
# **Remember**
# - The order is: build on meta, cut, fill each rank's part, then build the optimizer.
# - Gather in bf16, reduce in fp32, keep shards in fp32.
# - A shared weight belongs to one unit.

# %% [markdown]
# ## 9.5 The library: FSDP1 and FSDP2
#
# **FSDP1**, `FullyShardedDataParallel`, came from FairScale (*Fully Sharded Data Parallel: faster AI training with fewer GPUs*, 2021)
# into PyTorch 1.11 in March 2022 (*Introducing PyTorch Fully Sharded Data Parallel (FSDP) API*; note 002 lists both), and not in September 2023, as note 001 says. PyTorch's tutorial calls
# it deprecated. **FSDP2**, `fully_shard`, cuts each tensor along its first dimension and leaves it in its place, as a **DTensor** (分布式张量): a tensor that knows on which ranks its parts
# lie.
#
# | | FSDP1 | FSDP2 |
# |---|---|---|
# | what is cut | one flat vector for each unit | each tensor by rows |
# | names of parameters | `_flat_param`, or `use_orig_params=True` | unchanged |
# | frozen weights, or other weight decay, in a unit | difficult | each tensor by itself |
# | padding | less than $n$ numbers for each unit | less than $n$ rows for each tensor |
# | freeing memory | rate limiter, the peak varies | the stream waits, the peak is the same in each step |
# | with tensor and pipeline parallelism | hard | one more dimension of the mesh |
#
# A layer with a norm of 3 weights, a matrix of 3 × 3 and 3 biases, cut over 4 ranks by FSDP2:

# %% tags=["drawing"]
figures.cut_rows({"norm": (3, 1), "matrix": (3, 3), "biases": (3, 1)}, ranks=4)

# %% [markdown]
# Rank 3 gets nothing but padding. A real matrix has thousands of rows. In the run above:

# %%
print(kind, tuple(shape), "of which here", tuple(local_shape))
assert (sent["all-gather"][0], sent["reduce-scatter"][0]) == (2 * layers + 1, 5)

# %% [markdown]
# Name and shape of the weight are unchanged; half of its rows are here. The collectives are the nine and five of section 9.1.
#
# ### Sharding strategies
#
# FSDP1 calls its settings *sharding strategies* (分片策略). In FSDP2 two arguments say the same:
#
# | FSDP1 | what is cut, and when | FSDP2's `fully_shard` | as in |
# |---|---|---|---|
# | `FULL_SHARD` | everything; a layer is gathered twice | `reshard_after_forward=True` | ZeRO-3 |
# | `SHARD_GRAD_OP` | everything, but whole from forward to backward | `reshard_after_forward=False` | ZeRO-2 in its traffic |
# | `NO_SHARD` | nothing | do not call it | DDP |
# | `HYBRID_SHARD` | cut inside a node, copied between nodes | `mesh=` of two dimensions | ZeRO++ for weights (section 8.3) |
#
# Three of them on two nodes of four GPUs. A square is a layer, and blue is what that GPU stores of it:

# %% tags=["drawing"]
strategies = {"NO_SHARD": 1, "HYBRID_SHARD": 4, "FULL_SHARD": 8}
figures.shard_groups(strategies, nodes=2, per_node=4)

# %% [markdown]
# ### Hybrid sharding is a mesh
#
# LLaMA-2 7B on 64 GPUs, cut over all 64: 1.7 GB of states on each GPU, and each gather crosses the nodes. **Hybrid** sharding (HSDP, 混合分片) spends memory to save
# these messages. It cuts over the **shard group** (分片组) of the $m = 8$ GPUs of a node only, and nodes hold copies: 13.5 GB. In general a GPU holds
#
# $$\frac{16\,P}{m} \quad\text{instead of}\quad \frac{16\,P}{n} .$$
#
# Then all gathers stay on NVLink: the strategy matches the topology of the cluster (集群拓扑), as note 001 says. LLaMA-2 70B would need 138 GB on a GPU instead of 17.2, too much for 80 GB.
#
# A **device mesh** (设备网格) is a grid of ranks. 64 ranks in nodes of 8 are a mesh of 8 × 8: a row is a node, and a column has one rank of each node. With such a mesh `fully_shard` cuts
# over the ranks of a row and copies along the columns. Here four ranks stand for two nodes of two.
#
# **Predict.** Gathers and reduce-scatters stay inside a node. After them, each rank must still add up its part of the gradients with the rank of the other node that holds the same part. How many
# all-reduces between the nodes does a step of our GPT with four layers make?

# %%
copies = predict("9.copies", "All-reduces?", yours=None)


# %%
def hybrid(micro_batches=1, waits=False):
    """A rank's place, where a gradient lies, its part of it, and what was sent."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("node", "inside"))
    rank, model = cut_model(mesh=mesh)
    axes = {mesh.get_group(axis).group_name: axis for axis in mesh.mesh_dim_names}
    with measure.wire.log_wire() as log:
        for number in range(1, micro_batches + 1):
            model.set_requires_all_reduce(number == micro_batches or not waits)
            own_loss(rank, model).backward()
    part = model.blocks[0].mlp[0].weight.grad
    placed = mesh.get_coordinate(), str(part.placements)
    return *placed, part.to_local(), log.sent(axes)


# %%
on_ranks = launch.run(hybrid, ranks=4)
along = on_ranks[0][-1]
expect(layers + 1, along["node all-reduce"][0], label="all-reduces", yours=copies)

# %%
for number, (place, placed, *_) in enumerate(on_ranks):
    print(f"rank {number}: node {place[0]}, place {place[1]}; {placed}")
for what, (calls, size) in along.items():
    print(f"{what:<24}{calls:>3} calls {size:>12,} B")
assert along["node all-reduce"][1] == 4 * parameters / 2

# %% [markdown]
# **Explain.** One for each unit, and each carries half of the unit's numbers. The gradient is `Replicate`, a copy, between the nodes and `Shard` inside them.
#
# If an update has four micro-batches, `set_requires_all_reduce(False)`
# in the first three reduces inside the node each time and between the nodes only once:

# %%
*_, part, every = launch.run(hybrid, 4, False, ranks=4)[0]
*_, same, waited = launch.run(hybrid, 4, True, ranks=4)[0]
name = "node all-reduce"
expect(4 * (layers + 1), every.pop(name)[0], label="all-reduces, each time")
expect(layers + 1, waited.pop(name)[0], label="only the last time")
assert every == waited and every["inside reduce-scatter"][0] == 4 * (layers + 1)
torch.testing.assert_close(part, same)

# %% [markdown]
# This quarters the traffic between the nodes. Inside a node nothing changes, and the gradient is the same.
#
# **Remember**
# - FSDP2 cuts each tensor by rows and keeps its name and shape.
# - FULL_SHARD, SHARD_GRAD_OP and HYBRID_SHARD are `reshard_after_forward` and the mesh.
# - Hybrid sharding holds $n/m$ times the states, and keeps the gathers on NVLink.

# %% [markdown]
# ### Deeper: which modules are units?
#
# LLaMA-2 7B's embedding and head are two matrices of 131 million numbers each. In the root both stay whole during the whole step. Must they?

# %% [markdown]
# torchtitan makes units of them: the embedding is
# one, and the last norm with the head is another, given as a list (torchtitan/models/llama3/infra/parallelize.py). Its root is empty. Two refinements are possible:
#
# - `[norm, head]` is the last unit of the forward pass and the first of the backward pass. Freeing it in between gains nothing, so `reshard_after_forward=False`.
# - An embedding's backward pass needs the token numbers and no weights: `set_unshard_in_backward(False)`.
#
# **Predict.** Our GPT with a head of its own, as in LLaMA: four blocks and these two units make 12 all-gathers, two for each unit. How many with both refinements?

# %%
refined_units = predict("9.refined", "All-gathers, with both?", yours=None)


# %%
def with_units(refined, whole_blocks=0):
    """The all-gathers of a step in which the root is empty."""
    rank, model = launch.init(), training.build()
    model.head.weight = torch.nn.Parameter(model.head.weight.detach().clone())
    fully_shard([model.embedding, model.positions])
    for number, block in enumerate(model.blocks):
        fully_shard(block, reshard_after_forward=number < layers - whole_blocks)
    fully_shard([model.norm, model.head], reshard_after_forward=not refined)
    fully_shard(model)
    model.embedding.set_unshard_in_backward(not refined)
    with measure.wire.log_wire() as log:
        own_loss(rank, model).backward()
    return log.sent()["all-gather"][0]


# %%
wanted = (False, 0), (True, 0), (True, 1)
plain, refined, last_whole = (launch.run(with_units, *it, ranks=2)[0] for it in wanted)
expect(2 * layers + 2, refined, label="with both", yours=refined_units)
assert (plain, last_whole) == (2 * (layers + 2), 2 * layers + 1)

# %% [markdown]
# **Explain.** Each block is gathered twice, and each of the two units at the ends once. If the last block stays whole as well, one more gather is saved; it costs a layer's memory while the head
# computes. Ten gathers are one more than with a root, but the memory is less: in the middle of the 7B model's backward pass, two layers are whole, 0.81 GB of bf16 weights, instead of two layers and the
# root, 1.33 GB. With a shared table this does not work, since embedding and head would be two units with one weight. So our GPT keeps its root.

# %% [markdown]
# ### Deeper: how far ahead?
#
# On a GPU, prefetch comes by itself. What does `set_modules_to_forward_prefetch` add?

# %% [markdown]
# In the forward pass the CPU runs ahead and asks for the next gather, which has a stream of its own. In the backward pass FSDP2 asks for the next unit
# explicitly. `block.set_modules_to_forward_prefetch([…])` does the same forward, and its list may have several units. A CPU has no streams, so our ranks prefetch forward only what is listed. How many bytes are
# alive in the first block with none, one and two blocks ahead?


# %%
def alive_in_first_block(ahead):
    """Bytes in tensors when the MLP of the first block has computed, in a second step."""
    rank, model = cut_model()
    own_loss(rank, model).backward()  # a first step makes buffers that stay
    for number, block in enumerate(model.blocks):
        block.set_modules_to_forward_prefetch(model.blocks[number + 1 :][:ahead])
    alive = []
    with measure.peak.log_memory() as log:
        hook = model.blocks[0].mlp.register_forward_hook
        hook(lambda *_: alive.append(log.timeline[-1]))
        own_loss(rank, model)
    return alive[0]


# %%
alive = [launch.run(alive_in_first_block, ahead, ranks=2)[0] for ahead in (0, 1, 2)]
a_block = 4 * sum(p.numel() for p in training.build().blocks[0].parameters())
assert [bytes_ - alive[0] for bytes_ in alive] == [0, a_block, 2 * a_block]
names = ("none ahead", "one ahead", "two ahead")
ahead = dict(zip(names, alive, strict=True))
figures.bars(ahead, units.format_bytes, "Alive in the first block", style.TEMPORARY)

# %% [markdown]
# One layer more for each step ahead. On a GPU a list of one unit gives the default overlap but issues the gather earlier, which helps where the CPU is slow. Two or more are for layers of unequal length, where
# one short layer cannot hide a long gather (docstring of `set_modules_to_forward_prefetch`). Among equal layers the second brings nothing, as the stepper of section 9.1 has shown.

# %% [markdown]
# ### Deeper: torch.compile
#
# torchtitan compiles each block and makes a unit of it afterwards. How many graphs do our four blocks need?


# %%
def step_of(compiled):
    """The graphs that a step makes, and the whole gradient of one weight."""
    with measure.gradients.log_graphs() as log:
        rank, model = launch.init(), training.build()
        for block in model.blocks:
            if compiled:
                block.compile(backend=log.backend)
            fully_shard(block)
        fully_shard(model)
        made = log.new_graphs(lambda: own_loss(rank, model).backward())
    return made, model.blocks[0].mlp[0].weight.grad.full_tensor()


# %%
(none, by_python), (made, by_graph) = (
    launch.run(step_of, compiled, ranks=2)[0] for compiled in (False, True)
)
assert (none, made) == (0, 1)
torch.testing.assert_close(by_python, by_graph)

# %% [markdown]
# One graph serves all four, because they are alike, and the gradient is the same. FSDP's hooks stay outside the graph, so gathers and reductions overlap as before. With compilation, Llama 3.1 8B did 6,667 tokens a second on each of
# 8 H100 instead of 5,762, 16 % more, and took 77.0 GiB instead of 82.4 (the benchmark of section 9.3, table 1). Section 15.5 has more on graphs.

# %% [markdown]
# ## 9.6 In use: accumulate, clip, save
#
# ### Accumulation: send each time, or keep gradients whole
#
# LLaMA-2 7B on eight cards of 24 GB, four micro-batches for each update. The reduce-scatters may run after each of them. That is four times the messages, and a card keeps its eighth of the
# gradients. Or they run once, after the last, and the gradients add up *whole*, in fp32:
#
# $$4\,P = 27.0 \text{ GB} \quad\text{instead of}\quad \frac{4\,P}{8} = 3.4 \text{ GB}.$$
#
# 27.0 GB are more than the card has. A rank that has sent a gradient away has only its own part to add to, and a rank that has not must keep all of it. The first way is FSDP2's default, the second is
# `model.set_requires_gradient_sync(False)` for all micro-batches but the last, like DDP's `no_sync`.

# %% tags=["drawing"]
seven = models.MODELS["llama2-7b"]
count = seven.parameters().total
held = {
    "each micro-batch": {
        "weights and moments": 12 * count / 8,
        "gradients": 4 * count / 8,
    },
    "each update": {"weights and moments": 12 * count / 8, "gradients": 4 * count},
}
looks = {"weights and moments": style.STATES}
title = "Reduced after each micro-batch, or each update"
limit = ("one card", 24 * units.GB)
words = {
    name: f"{parts['gradients'] / 1e9:.1f} GB of gradients"
    for name, parts in held.items()
}
figures.stacked_bars(held, title, units.format_bytes, words, colours=looks, limit=limit)

# %% [markdown]
# **Predict.** Our GPT on 2 ranks, two micro-batches. With an exchange each time, they make 18 all-gathers and 10 reduce-scatters. How many all-gathers are
# left if a rank waits with the exchange of gradients?

# %%
still = predict("9.waiting", "All-gathers, if it waits?", yours=None)


# %%
def accumulate(waits):
    """Two micro-batches: what was sent, and bytes that are alive between the two."""
    rank, model = cut_model()
    mine, alive = own_rows(training.batches()[0], rank), []
    with measure.wire.log_wire() as wire, measure.peak.log_memory() as log:
        for number in range(2):
            model.set_requires_gradient_sync(number == 1 or not waits)
            mean_loss(model, rows_of(mine, number, 2)).backward()
            alive.append(log.timeline[-1])
    return wire.sent(), alive[0]


# %%
each_time, cut_bytes = launch.run(accumulate, False, ranks=2)[0]
waited, whole_bytes = launch.run(accumulate, True, ranks=2)[0]
gathers = 2 * (2 * layers + 1)
expect(gathers, waited["all-gather"][0], label="all-gathers", yours=still)

# %% [markdown]
# **Explain.** None is saved. Weights are freed after each pass, so they must be gathered again for each micro-batch, whatever happens to gradients. Only the reduce-scatters are
# fewer, 5 instead of 10, and between the micro-batches whole gradients take 4 bytes for each parameter, twice as much as with an exchange each time:

# %%
expect(4 * parameters, whole_bytes, label="gradients between", unit="B")
scatters = [sent["reduce-scatter"][0] for sent in (each_time, waited)]
assert scatters == [2 * (layers + 1), layers + 1] and cut_bytes == whole_bytes // 2

# %% [markdown]
# `set_reshard_after_backward(False)` saves the gathers between micro-batches as well; then all weights stay whole.
#
# ### Clipping, once more
#
# Chapter 8 warned of `clip_grad_norm_` on shards: each rank would divide by the norm of its own part. On DTensors the same call is right. A DTensor knows that it is a part, and
# `full_tensor()` adds the squares up over the ranks:


# %%
def clipped(limit=0.05):
    """Norms before clipping, of the whole gradient and of this rank's part; the whole norm after."""
    rank, model = cut_model()
    own_loss(rank, model).backward()
    own = torch.stack([p.grad.to_local().norm() for p in model.parameters()]).norm()
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), limit)
    whole = [p.grad.full_tensor().norm() for p in model.parameters()]
    return norm.full_tensor().item(), own.item(), torch.stack(whole).norm().item()


# %%
alone = training.build()
mean_loss(alone, training.batches()[0]).backward()
norm_alone = torch.nn.utils.clip_grad_norm_(alone.parameters(), 0.05).item()
(norm, own_norm, after), (_, other_norm, _) = launch.run(clipped, ranks=2)
print(f"one process {norm_alone:.6f}, DTensors {norm:.6f}")
print(f"shards alone {own_norm:.6f} and {other_norm:.6f}")
assert abs(norm / norm_alone - 1) < 1e-5 and abs(after / 0.05 - 1) < 1e-4
assert own_norm != other_norm and max(own_norm, other_norm) < norm

# %% [markdown]
# ### State dicts, sharded and full
#
# LLaMA-2 70B in fp32 on 64 ranks: a *sharded* state dict is 4.3 GB on each rank, a *full* one 276 GB on rank 0. `model.state_dict()` of FSDP2 is sharded: it holds DTensors, each rank's own
# parts, and nothing is sent. That is what a checkpoint of a training needs (section 15.7). To publish the model you want whole tensors on one rank: `StateDictOptions(full_state_dict=True,
# cpu_offload=True)` gathers tensor by tensor into rank 0's host memory. First what each of them costs:


# %%
def dict_of(model, full):
    """A state dict, its bytes on this rank, and the all-gathers it took."""
    asked = state_dict.StateDictOptions(full_state_dict=full, cpu_offload=full)
    with measure.wire.log_wire() as log:
        found = state_dict.get_model_state_dict(model, options=asked)
    parts = [getattr(part, "_local_tensor", part) for part in found.values()]
    held = {part.untyped_storage().data_ptr(): part.nbytes for part in parts}
    return found, sum(held.values()), log.sent().get("all-gather", (0, 0))[0]


# %% [markdown]
# Then take both, overwrite a weight with zeros, and load the full one:


# %%
def saved_twice():
    """Bytes and all-gathers of both kinds; whether the full one can be loaded."""
    _, model = cut_model()
    (_, *sharded), (whole, *full) = dict_of(model, False), dict_of(model, True)
    weight = model.blocks[0].mlp[0].weight
    before = weight.full_tensor()
    weight.detach().zero_()
    asked = state_dict.StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
    state_dict.set_model_state_dict(model, whole, options=asked)
    return sharded, full, before.equal(model.blocks[0].mlp[0].weight.full_tensor())


# %%
(sharded, full, loaded), (_, others, _) = launch.run(saved_twice, ranks=2)
table = 4 * 128 * 64  # bytes of the embedding, which is the head as well
print(f"sharded {sharded[0]:,} B, {sharded[1]} all-gathers")
print(f"full {full[0]:,} B on rank 0, {others[0]} B on rank 1, {full[1]} all-gathers")
assert sharded == [2 * parameters, 0] and loaded
assert full == [4 * parameters + table, 53] and others[0] == 0

# %% [markdown]
# The sharded dict is half of the model, to the byte. The full one took an all-gather for each of 53 names. (The shared table has two names and is there twice.) To load it,
# `broadcast_from_rank0` sends tensor by tensor, and each rank keeps its rows.
#
# ### What to choose
#
# Ask in this order, for one micro-batch on a GPU:
#
# | what fits on a GPU, beside activations and whole layers | network | choose |
# |---|---|---|
# | all states, 16 bytes for each parameter | any | DDP: nothing to gather |
# | weights and gradients whole, moments cut | any | ZeRO-1, with DDP's bytes |
# | the states, cut inside a node | fewer tokens than the bound of section 9.3 | HSDP: gathers stay on NVLink |
# | the states, cut inside a node | more tokens | FULL_SHARD, and use the free memory for tokens |
# | only the states cut over all GPUs | any | FULL_SHARD; below the bound, more tokens for each GPU |
# | not even these | | checkpointing; then tensor, context or pipeline parallelism (chapters 10 to 12) |
#
# The numbers for three models on 64 GPUs in nodes of 8, with everything recomputed and one sequence of 4096 tokens (GPT-2: 1024):

# %%
choices = {
    "DDP": {},
    "ZeRO-1": {"zero_stage": 1},
    "HSDP": {"zero_stage": 3, "shard_group": 8},
    "FULL_SHARD": {"zero_stage": 3},
}
recipe, needs = Recipe(recompute="full"), {}
for name in ("gpt2-1.5b", "llama2-13b", "llama2-70b"):
    for choice, options in choices.items():
        layout, model = Layout(dp=64, **options), models.MODELS[name]
        bill = gpu_memory(Job(model, recipe, layout, sequence=min(4096, model.context)))
        needs.setdefault(name, {})[choice] = bill.total_bytes / units.GB
assert needs["gpt2-1.5b"]["DDP"] < 80 and needs["llama2-13b"]["ZeRO-1"] < 80
assert needs["llama2-13b"]["HSDP"] < 80 < needs["llama2-70b"]["HSDP"]

# %%
for name, row in needs.items():
    print(f"{name:<11}", ", ".join(f"{what} {gb:,.0f} GB" for what, gb in row.items()))

# %% [markdown]
# GPT-2 1.5B takes DDP. 13B takes ZeRO-1 with 58 GB, or HSDP with 33 GB, which leaves room for more tokens. 70B takes FULL_SHARD, with 34 GB.
#
# **Remember**
# - With accumulation: a reduce-scatter for each micro-batch, or whole gradients, $4P$ bytes in fp32, until the last.
# - DTensors are clipped by the norm of the whole gradient. A sharded state dict sends nothing; a full one brings the whole model to rank 0.
# - Choose the least sharding that fits.

# %% [markdown]
# ## 9.9 On real ranks
#
# Two ranks train the same GPT with the course's FSDP and with `fully_shard`. One process trains it too, for comparison.

# %%
run = demos.run("fsdp", ranks=2, model="4x64x4", steps=4, stream=False)
print(run.report())

# %%
for version in run.versions:
    calls = version.sent["all-gather"][0], version.sent["reduce-scatter"][0]
    assert calls == (2 * layers + 1, layers + 1)
    assert version.stored == version.predicted_stored
figures.loss(
    {version.name: version.losses for version in run.versions}
    | {"one process": run.losses_one_process}
)

# %% [markdown]
# The three curves coincide. Each rank stores half of everything.
#
# ### Two lanes, predicted and measured
#
# The stepper of section 9.1 was theory. Now the same on two real ranks: a root and four layers that sleep instead of computing, 20 ms forward and 40 ms backward, so that the few cores of a laptop do
# not distort the picture. The link sleeps too: each message takes 20 ms. So a layer computes exactly as long as its messages take, as at the bound of section 9.3.
#
# Without prefetch nothing is hidden: theory says 240 ms of sleep and 14 messages of 20 ms, 520 ms together.
#
# **Predict.** How many ms does the step take with prefetch? (Which messages must the GPU still wait for, at the beginning, at the turn and at the end?)

# %%
prefetched = predict("9.lanes", "ms with prefetch?", yours=None, unit="ms")

# %%
slow = {"numbers": 6000, "message_ms": 20.0, "forward_ms": 20.0}
lanes = demos.run("prefetch", ranks=2, stream=False, **slow)
without, ahead = lanes.lanes
expect(340, 1000 * ahead.measured_s, None, "ms", "with prefetch", yours=prefetched)

# %%
print(lanes.report())

# %% tags=["drawing"]
figures.two_lanes(
    {"predicted, no prefetch": without.predicted, "measured": without.measured}
)

# %% tags=["drawing"]
figures.two_lanes({"predicted, prefetch": ahead.predicted, "measured": ahead.measured})

# %% [markdown]
# **Explain.** Five messages stay exposed: the gathers of the root, of layer 1 and, at the turn, of layer 4, and the last two reductions, of layer 1 and of the root. $240 + 5 \cdot 20 = 340$. Messages and sleeps take
# longer than planned where two ranks share few cores. The report's first prediction takes messages as measured alone, its last one those of this step, testing only their order. Outside the notebook, also by PyTorch's own launcher:
#
# ```
# course demo prefetch --ranks 2 --message-ms 20 --forward-ms 10
# course demo fsdp --ranks 2 --no-reshard
# python -m torch.distributed.run --standalone --nproc-per-node 2 -m course_lib.demos fsdp
# ```

# %% [markdown]
# ## The answer
#
# 1. Build on meta, cut, fill, then build the optimizer. LLaMA-2 70B then takes 4.3 GB of fp32 weights on each of 64 ranks, never 276.
# 2. Gather in bf16 and reduce in fp32: half of the gathered bytes, and the shards are the master copy.
# 3. Choose the least sharding that fits: DDP, ZeRO-1, then a mesh of two dimensions if the messages between nodes stay exposed, else full sharding. The mesh costs $n/m$ times the states.
# 4. Reduce after each micro-batch, or keep $4P$ bytes of whole gradients. Clip on DTensors, save sharded: 4.3 GB on each rank instead of 276 on one.
#
# FSDP does not shrink whole layers, activations, or the batch of one sample for each rank. The next chapters do. The deeper notebook has YaFSDP, and audits two benchmarks.

# %%
from course_lib import quiz

quiz("9")

# %% [raw] tags=["quiz"]
# FULL_SHARD on 8 ranks. With how many of a layer's weights does a rank multiply?
# [ ] an eighth
# [x] all
# [ ] it depends on the strategy
# Why: It gathers the whole layer. Ranks differ in the data and in what they store.
#
# A model has 30 layers. How many all-gathers has a step with resharding?
# [x] 61
# [ ] 30
# [ ] 90
# Why: Each layer twice, the root once: 2 · 30 + 1.
#
# You double the ranks. What does not shrink?
# [ ] the optimizer states of a rank
# [ ] the shards
# [x] the whole layers at the peak
# Why: A whole layer is a whole layer, on 8 ranks as on 8000.
#
# New GPUs compute twice as fast, on the same network. How many tokens hide the messages?
# [ ] as many as before
# [ ] half as many
# [x] twice as many
# Why: The messages take as long as before; the same tokens are done in half of the time.
#
# Gradients are not reduced until the last of four micro-batches. What is saved?
# [ ] three of four gathers
# [x] three of four reduce-scatters
# [ ] memory for gradients
# Why: Weights are gathered each time, and whole gradients take more memory than shards.
#
# Which order is right?
# [ ] optimizer, fully_shard, fill
# [x] meta, fully_shard, fill, optimizer
# [ ] fill, meta, cut
# Why: An optimizer that is built first holds parameters that never get a gradient.
#
# Each layer is checkpointed. What happens to FSDP's messages?
# [ ] a layer is gathered three times instead of twice
# [x] they stay the same, and fewer tokens hide them
# [ ] the backward pass gathers nothing
# Why: One gather serves the repeated forward pass and the backward pass, and 6 FLOP instead of 4 hide it.

# %% [markdown]
# **Read on.** Zhao et al. 2023, *PyTorch FSDP*, sections 3 and 4 (arXiv:2304.11277). Liang et al. 2024, *TorchTitan*,
# section 2 (arXiv:2410.06511), for FSDP2 with all other axes.

# %% [markdown] tags=["exercise"]
# ### 9.4 Debug: which strategy?
#
# 64 H100 stand in nodes of 8, and each node has a single network port of 400 Gb/s. AdamW takes 16 bytes a parameter. Programs find 85.0 GB on a card that is sold with "80 GB"; leave 5 % of that
# free, so that 80.8 GB may be used. For each of these trainings choose the simplest strategy that fits: `"DDP"`, else `"HYBRID_SHARD"` (cut inside a node), whose gathers stay on NVLink, else
# `"FULL_SHARD"`, else `"none"`. What a GPU gets is one micro-batch. Estimate states and activations first; then ask `gpu_memory`.

# %% [raw] tags=["hints"]
# importance 5, difficulty 3
# 16 bytes a parameter: on one GPU, over 8 of them, over 64. What is left for activations?
# Which strategy makes activations smaller?
# gpu_memory(job) with Layout(dp=64), then zero_stage=3, shard_group=8, then zero_stage=3.

# %% tags=["exercise"]
### BEGIN GIVEN
# layout = Layout(dp=64, micro_batch=8)  # DDP; zero_stage=3 and shard_group=8 are HYBRID_SHARD
# job = Job(models.MODELS["gpt2-1.5b"], Recipe(recompute="none"), layout, sequence=1024)
# gpu_memory(job).total_bytes / 1e9
### END GIVEN
choices = {
    "gpt2-1.5b, 8 sequences of 1024, nothing recomputed": ...,
    "llama2-13b, 1 sequence of 4096, nothing recomputed": ...,
    "llama2-7b, 4 sequences of 4096, nothing recomputed": ...,
    "llama2-70b, 1 sequence of 4096, all recomputed": ...,
}
### BEGIN SOLUTION
choices = {
    "gpt2-1.5b, 8 sequences of 1024, nothing recomputed": "DDP",
    "llama2-13b, 1 sequence of 4096, nothing recomputed": "HYBRID_SHARD",
    # Its states are small, but activations are not sharded: recompute, or fewer sequences.
    "llama2-7b, 4 sequences of 4096, nothing recomputed": "none",
    "llama2-70b, 1 sequence of 4096, all recomputed": "FULL_SHARD",
}
### END SOLUTION
check("9.4", choices)

# %% [markdown] tags=["exercise"]
# ### 9.8 Predict: the optimizer that was too early
#
# A GPT with 28 tensors and 9152 parameters is cut over 2 ranks with `fully_shard`. In the first run AdamW is built before the cut, in the second run after it. How many of the 28 tensors change in
# `step()` in each run? And how many numbers does each optimizer hold? Guess, run the cell below, then answer.

# %% [raw] tags=["hints"]
# importance 3, difficulty 2
# An optimizer skips parameters without gradients.
# Half of 9152 on each rank.

# %% tags=["exercise"]
training = Training("2x16x2")


def one_step(early):
    """Tensors that an update changes, and numbers that the optimizer holds."""
    launch.init()
    model = training.build()
    optimizer = torch.optim.AdamW(model.parameters()) if early else None
    for block in model.blocks:
        fully_shard(block)
    fully_shard(model)
    optimizer = optimizer or torch.optim.AdamW(model.parameters())
    shards = [p.to_local() for p in model.parameters()]
    before = [shard.clone() for shard in shards]
    mean_loss(model, training.batches()[0]).backward()
    optimizer.step()
    changed = [not a.equal(b) for a, b in zip(before, shards, strict=True)]
    held = [p for group in optimizer.param_groups for p in group["params"]]
    return sum(changed), sum(getattr(p, "_local_tensor", p).numel() for p in held)


# %% tags=["exercise"]
# launch.run(one_step, True, ranks=2)[0]   # and with False
changed_early, held_early, changed_late, held_late = ..., ..., ..., ...
### BEGIN SOLUTION
changed_early, held_early = launch.run(one_step, True, ranks=2)[0]
changed_late, held_late = launch.run(one_step, False, ranks=2)[0]
### END SOLUTION
check("9.8", [changed_early, held_early, changed_late, held_late])

# %% [markdown] tags=["exercise"]
# ### 9.9 Implement: choose a strategy
#
# Write the decision table of section 9.6, without ZeRO-1, as a function. `states_gb` are the states of the whole model. `rest_gb` is what sharding leaves on each card: activations, whole layers, the
# framework's own. Return `"DDP"` if all of it fits on a card of `card_gb`. Else return `"HYBRID_SHARD"` if the states fit when they are cut over the `per_node` cards of a node, and a card has fewer
# than `hiding_tokens` tokens. Else return `"FULL_SHARD"` if they fit when they are cut over all `cards`, and otherwise `"none"`.

# %% [raw] tags=["hints"]
# importance 3, difficulty 2
# What does each strategy divide: the states, or also the rest?
# Four returns in this order. As many tokens as hiding_tokens are enough.


# %% tags=["exercise"]
def strategy(
    states_gb: float,
    rest_gb: float,
    card_gb: float,
    cards: int,
    per_node: int,
    tokens: int,
    hiding_tokens: float,
) -> str:
    """The strategy that the table advises."""
    ### BEGIN SOLUTION
    if states_gb + rest_gb <= card_gb:
        return "DDP"
    if tokens < hiding_tokens and states_gb / per_node + rest_gb <= card_gb:
        return "HYBRID_SHARD"
    if states_gb / cards + rest_gb <= card_gb:
        return "FULL_SHARD"
    return "none"
    ### END SOLUTION


check("9.9", strategy)

# %% [markdown] tags=["exercise"]
# ### 9.12 Calculate: FSDP in use
#
# LLaMA-2 7B (6,738,415,616 parameters, 32 layers and the root) is trained on 32 A100 that reach 156 TFLOP/s, in nodes of eight with *four* ports of 200 Gb/s (25 GB/s each). FSDP2 gathers in bf16
# and reduces in fp32. An update has four micro-batches. How many tokens must a micro-batch have on each GPU to hide the messages of the backward pass? How many sequences of 2048 tokens are that, at least?
# If gradients are reduced only in the last micro-batch, how many GB of them add up on each GPU until then? And how many all-gathers and reduce-scatters does the update make?

# %% [raw] tags=["hints"]
# importance 3, difficulty 2
# Section 9.3: (n-1)/n, 6 bytes for 4 FLOP. The ports of a node add up.
# Whole gradients in fp32. Weights are gathered in each micro-batch, whatever happens to gradients.

# %% tags=["exercise"]
hiding_tokens, sequences, gradients_gb, gathers, scatters = ..., ..., ..., ..., ...
### BEGIN SOLUTION
hiding_tokens = 31 / 32 * (2 + 4) / 4 * 156e12 / (4 * 25e9)
sequences = -(-hiding_tokens // 2048)
gradients_gb = 4 * 6_738_415_616 / 1e9
gathers, scatters = 4 * (2 * 32 + 1), 32 + 1
### END SOLUTION
check("9.12", [hiding_tokens, sequences, gradients_gb, gathers, scatters])
