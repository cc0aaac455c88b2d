# %% [raw] tags=["sitting"]
# question: What do wrappers and the compiler change behind your back?
# importance: 2
# difficulty: 4
# group: alone
# needs: 9

# %% [markdown]
# # 15 Wrappers, the compiler, a rehearsal
#
# Two ranks train a matrix of 64 × 64 numbers with Muon, each on its own 32 rows. Every update is off by 53 %, and there is no error. In the same quiet way a wrapper can change the bytes of an optimizer, the steps of fp16 and the graphs of the compiler. How do you see such things, and how do you see them *before* 1,024 GPUs start?
#
# After this sitting you can
#
# - name what a wrapper changes: parameters, optimizers, graphs,
# - count graphs, breaks and recompilations,
# - find the largest batch, by theory and by a program,
# - turn a plan into the files of an engine, and rehearse one rank of 1,024 on a laptop.

# %%
import re
from dataclasses import replace

import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

from course_lib import demos, emitting, expect, launch, measure, predict, recorded
from course_lib import show_source, style
from course_lib.chapters.ch15_launchers_and_recovery import figures

launch.warm_up()
torch.set_num_threads(1)

# %%
from course_lib.chapters.ch15_launchers_and_recovery.demos.wrappers import orthogonal
from course_lib.chapters.ch15_launchers_and_recovery.graphs import graphs_made
from course_lib.chapters.ch15_launchers_and_recovery.rehearsal import rehearse
from course_lib.theory import Cluster, Job, Layout, Recipe, hardware, models

# %% [markdown]
# ## 15.4 What wrappers change
#
# Section 15.3 showed that most wrappers replace a model's parameters: an optimizer that was built too early learns nothing. Where each rank holds only a part of each tensor, as in FSDP2's **DTensors**, more changes.
#
# ### Numbers that each rank holds
#
# The four wrappers of section 15.3 again:

# %%
wraps = demos.run("wrappers", ranks=2, stream=False)
held = {one.name: one.numbers for one in wraps.wrappers}
learned = {
    one.name: "learns" if one.learns_if_built_before else "learns nothing"
    for one in wraps.wrappers
}
title = "Numbers that rank 0 holds, and whether an early optimizer learns"
figures.stacked_bars(held, title, totals=learned)

# %% [markdown]
# ### Optimizers that need the whole matrix
#
# SGD and AdamW treat each number by itself, so they can work on any piece. **Muon** cannot: it takes the gradient of a matrix and makes its rows nearly orthogonal, by a few rounds of matrix products (Jordan et al. 2024, [Muon](https://kellerjordan.github.io/posts/muon/)):

# %%
show_source(orthogonal)

# %% [markdown]
# Take a gradient of 64 × 64 random numbers. Two ranks hold 32 rows each. First each rank gives its own rows to `orthogonal`, which takes them without an error; then it gives a DTensor. By how much is each update off from that of the whole matrix? (The norm of the difference, over the norm of the right update.)


# %%
def whole_and_pieces():
    """Errors of the update made from own rows and by a DTensor, and the latter's calls."""
    rank = launch.init()
    rows = slice(32 * rank.rank, 32 * rank.rank + 32)
    torch.manual_seed(0)
    g = torch.randn(64, 64)
    right = orthogonal(g)[rows]
    cut = distribute_tensor(g, init_device_mesh("cpu", (rank.world,)), [Shard(0)])
    with measure.wire.log_wire() as log:
        together = orthogonal(cut).to_local()
    own = orthogonal(cut.to_local())
    off = [((x - right).norm() / right.norm()).item() for x in (own, together)]
    return *off, log.sent()


# %%
(own, together, sent), _ = launch.run(whole_and_pieces, ranks=2)
print(f"own rows: off by {own:.0%}; a DTensor: off by {together:.1g}")
assert round(own, 2) == 0.53 and together < 1e-5
assert round(wraps.muon_gap, 2) == 0.39

# %% [markdown]
# 53 %. Rows that are orthogonal among themselves are not orthogonal to those of the other rank. How large the error is depends on the matrix: the demo `wrappers` cuts one of 8 × 16 and reports 39 %, because random rows that are long compared with their number are closer to orthogonal from the start.
#
# So the first limit in note 001 is right: results may differ for optimizers that need unsharded values. FSDP1 cuts a flat vector, in which even single rows are cut. The DTensor of FSDP2 got it right, without a change in `orthogonal`.
#
# ### The dispatcher
#
# How did the DTensor do it? Each operation of PyTorch goes through a switchboard, the **dispatcher** (分发器), which looks at the types of its arguments and picks the code. DTensor registers there. For each operation it has a rule: which cuts of the inputs give which cut of the output, and what has to be sent first. This is what note 001 means when it says that FSDP is integrated with tensors and "the dispatch system". Here it sent:

# %%
print(sent)
gathers, gathered_bytes = sent["all-gather"]
assert gathers == 3 * 5 and gathered_bytes == 15 * 64 * 64 * 4
assert sent["all-reduce"] == (1, 4)

# %% [markdown]
# There are three products in each of 5 rounds, and each of them gathers the whole matrix; the norm needs one number. That is right, but not cheap: real implementations gather each matrix once, and give different matrices to different ranks. `to_local()` bypasses the dispatcher, and the update is off by 53 % again.
#
# ### Optimizers with 8 bits
#
# Note 000 says that bitsandbytes' AdamW takes 2 bytes for each parameter. Measured on a GPT with 1.6 million parameters:

# %%
said = recorded("bitsandbytes")
print(said.splitlines()[0])
found = re.findall(r"([\d,]+) (?:parameters in|B  two)", said)
parameters, *sizes = (int(number.replace(",", "")) for number in found)
each = [size / parameters for size in sizes]
assert round(sum(each), 3) == 2.058

# %% tags=["drawing"]
eight_bit = dict(zip(("codes of 8 bits", "scales", "small tensors"), each, strict=True))
rows = {"AdamW, fp32": {"two moments": 2 * 4}, "AdamW8bit": eight_bit}
title = "Bytes of optimizer states for a parameter"
colours = {"two moments": style.STATES, "codes of 8 bits": style.STATES}
figures.stacked_bars(rows, title, "{:.2f}".format, colours=colours)

# %% [markdown]
# It is 2.06 bytes, with two parts that the note leaves out: a scale of 4 bytes for every 256 codes, and tensors with fewer than 4096 numbers, which stay in fp32. Now think of a wrapper that gives the optimizer nothing but its shards: over 64 ranks a matrix of 256 × 768 becomes 3,072 numbers on each, and nothing is saved. (Two bytes are half of the fp32 weights, as the note says, and all of the bf16 weights. Section 3.3 looks at how well it trains.)
#
# ### fp16, and a step that is left out
#
# Section 3.6 trained in fp16: a `GradScaler` multiplies the loss by $2^{16}$ before the backward pass, so that small gradients survive, and divides the gradients by it before the step. If a gradient is infinite by then, the scaler leaves out the step and halves the scale. (To clip, call `scaler.unscale_(optimizer)` first, or you compare your limit with a norm that is 65,536 times too large.)
#
# **Predict.** A matrix is cut over two ranks, and one number in the gradient of rank 1's part is infinite. With plain shards each rank has its own scaler and looks at its own part. How many of the two ranks leave out the step? And how many with a DTensor?

# %%
plain_ranks = predict("15.scaler", "Ranks that leave it out, plain shards?", yours=None)


# %%
def left_out(plain):
    """Whether this rank's weights stay as they are, and the calls of the scaler."""
    rank = launch.init()
    ranks = init_device_mesh("cpu", (rank.world,))
    cut = distribute_tensor(torch.ones(4, 4), ranks, [Shard(0)])
    own = cut.to_local()
    weight = torch.nn.Parameter(own if plain else cut)
    weight.grad = torch.ones_like(weight)
    if rank.rank == 1:
        (weight.grad if plain else weight.grad.to_local())[0, 0] = float("inf")
    scaler = torch.amp.GradScaler("cpu")
    scaler.scale(torch.ones(1))  # it makes its scale when it is first used
    with measure.wire.log_wire() as log:
        scaler.step(torch.optim.SGD([weight], lr=1.0))
    return bool((own == 1).all()), log.sent()


# %%
plain = launch.run(left_out, True, ranks=2, stream=False)
whole = launch.run(left_out, False, ranks=2, stream=False)
found = [out for out, _ in plain]
expect(1, sum(found), label="leave it out, plain", yours=plain_ranks)
assert found == [False, True] and all(out for out, _ in whole)

# %%
print("DTensor: both leave it out, after", whole[0][1])

# %% [markdown]
# **Explain.** With plain shards only rank 1 leaves out the step. From then on half of the matrix is one update ahead of the other half, without an error. With a DTensor both ranks leave it out: the dispatcher has a rule for the scaler's check too, and all-reduces one number, the maximum of "found an infinity". FSDP1 has a `ShardedGradScaler` for this; DeepSpeed and Megatron do it themselves. Under DDP nothing is needed: the all-reduce of the gradients makes the number infinite on all ranks.
#
# ### YaFSDP in Hugging Face, and patches
#
# Note 001 says that YaFSDP "can be used with Hugging Face workflows". It is done by patches: 326 added lines in 10 files, for transformers 4.39, accelerate 0.27 and trl 0.8.3 ([yandex/YaFSDP](https://github.com/yandex/YaFSDP)). A patch fits one version. Before you use one, ask which of your versions you would have to give up.
#
# ### From FSDP1 to FSDP2
#
# accelerate's default is still FSDP1. `accelerate to-fsdp2 --config_file old.yaml --output_file new.yaml` translates a file:
#
# | FSDP1 | FSDP2 | why |
# |---|---|---|
# | `fsdp_sharding_strategy: FULL_SHARD`, `SHARD_GRAD_OP` | `fsdp_reshard_after_forward: true`, `false` | this is all that the two differ in (chapter 9) |
# | `fsdp_use_orig_params` | gone | names and shapes are always the model's own |
# | `fsdp_backward_prefetch` | gone | weights are always prefetched before they are needed (`BACKWARD_PRE`), which hides most |
# | `fsdp_sync_module_states` | gone | `fsdp_cpu_ram_efficient_loading` implies it |
# | `fsdp_state_dict_type: FULL_STATE_DICT` | `SHARDED_STATE_DICT` by default | each rank saves its own shard, and nothing is sent (section 15.7) |
#
# (accelerate 1.15, *FSDP1 vs FSDP2*.) A checkpoint of FSDP1 is not one of FSDP2: convert it to a whole one first, or start from it once.
#
# **Remember**
# - Optimizers that look at a whole matrix need the whole matrix. A DTensor gathers it; `to_local()` does not.
# - fp16 needs a scaler, and all ranks must agree to leave out a step.
# - A patch fits one version.

# %% [markdown]
# ## 15.5 torch.compile: graphs, breaks, recompilation
#
# `torch.compile` runs your Python once, notes which operators it calls, and makes a **graph** (计算图) of them. A compiler then turns the graph into a few fused kernels (chapter 5). From the second call on, your Python is skipped. Two things
# can spoil this, and both can be counted, on any machine and without a compiler.
#
# **Graph breaks** (图中断). Where Python needs to know a *value*, the graph must end: it has to run before Python can go on. Here are three functions. Each has one line that may break the graph:


# %%
def asks(x):
    y = torch.relu(x)
    return y / max(1.0, y.sum().item())


def branches(x):
    y = torch.relu(x)
    if x.shape[0] > 4:
        y = 2 * y
    return y.mean()


def decides(x):
    y = torch.relu(x)
    if y.sum() > 4:
        y = 2 * y
    return y.mean()


# %% [markdown]
# **Predict.** How many graphs are made of the three together, if each is called once?

# %%
all_graphs = predict("15.graphs", "Graphs of all three?", yours=None)

# %%
graphs = {}
for function in (asks, branches, decides):
    with measure.gradients.log_graphs() as log:
        compiled = torch.compile(function, backend=log.backend)
        graphs[function.__name__] = log.new_graphs(
            lambda f=compiled: f(torch.ones(8, 8))
        )
expect(2 + 1 + 2, sum(graphs.values()), label="graphs", yours=all_graphs)

# %% tags=["drawing"]
figures.bars(graphs, "{:.0f}".format, "Graphs of one call", style.FORWARD)

# %% [markdown]
# **Explain.** Five. `.item()` brings a number out of a tensor, so `asks` breaks there. `branches` looks at a *shape*; shapes are known while the graph is made, and it stays whole. `decides` looks at a value. A break costs a return to Python, and the operators before it cannot be fused with those after it. The usual culprits in training loops are a `print`, and `loss.item()` for the log in each step. Find them by `measure.gradients.breaks`:

# %%
for broken in measure.gradients.breaks(decides, torch.ones(8, 8)):
    print(broken.line)

# %% [markdown]
# **Recompilation** (重新编译). A graph is made for certain shapes. A call with another shape makes a new graph, and training stalls while the compiler runs, which can take minutes for a large model.
#
# **Predict.** Five calls, with batches of 8, 8, 6, 5 and 8 samples. How many graphs are there afterwards?

# %%
five_calls = predict("15.recompiled", "Graphs after five calls?", yours=None)


# %%
def new_graphs(dynamic):
    """The graphs that each of the five calls adds."""
    with measure.gradients.log_graphs() as log:
        layer = torch.nn.Linear(8, 8)
        compiled = torch.compile(layer, backend=log.backend, dynamic=dynamic)
        return [
            log.new_graphs(lambda n=n: compiled(torch.ones(n, 8)))
            for n in (8, 8, 6, 5, 8)
        ]


# %%
new = new_graphs(None)  # None: the default
expect(graphs_made([8, 8, 6, 5, 8]), sum(new), label="graphs", yours=five_calls)


# %% tags=["drawing"]
def stairs(added):
    """The graphs just before and just after each call."""
    return [(n, sum(added[:until])) for n in range(1, 6) for until in (n - 1, n)]


figures.lines(
    {"as it is": stairs(new), "dynamic=False": stairs(new_graphs(False))},
    "calls, with 8, 8, 6, 5 and 8 samples",
    "graphs made",
    "When training stands still",
)

# %% [markdown]
# **Explain.** The first graph is for 8. At the first other size the compiler learns that the number changes, and makes one graph for all sizes. With `dynamic=False` each size gets its own graph. A size of 1 always does, since operators behave differently there. So the ragged last batch of an epoch (chapter 1) costs one more compilation. Set `drop_last=True`, or pad the batch.
#
# And in a wrapper? DDP sends a bucket while the backward pass goes on (chapter 7). A backward pass in *one* graph would be over before the first bucket could be sent. So the compiler cuts the graph of a DDP model at the borders of the buckets:

# %%
compiled = demos.run("compile", ranks=2, stream=False)
assert len(compiled.ddp_graphs) == compiled.all_reduces
cut = {"the GPT alone": compiled.model_graphs, "in DDP": compiled.ddp_graphs}
figures.stacked_bars(
    {
        name: {f"graph {n}": operators for n, operators in enumerate(graphs, 1)}
        for name, graphs in cut.items()
    },
    "Operators in each graph of one model",
)

# %% [markdown]
# There are as many graphs as all-reduces. Breaks are bad, except these: they let the communication hide.
#
# **Remember**
# - A value breaks a graph, a shape does not. No `.item()` in the middle of a step.
# - A second batch size costs one more graph, a size of 1 another.
# - A DDP model's graph is cut at the buckets on purpose.

# %% [markdown]
# ## 15.6 The batch that fits
#
# Note 002 quotes a benchmark of GPT-2 on two cards of 24 GB. Its command begins with a line that says how the batch size was found:
#
# ```
# export BS=#`try with different batch sizes till …`
# ```
#
# A program can do that: start with 1, double until the batch does not fit, then halve the gap.
#
# **Predict.** The largest batch that fits is 100. How many batches does the program try?

# %%
tries_needed = predict("15.tries", "Tries?", yours=None)

# %%
tried = []
found = measure.peak.largest_batch(lambda b: tried.append(b) or b <= 100)
assert found == 100
expect(8 + 6, len(tried), label="tries", yours=tries_needed)

# %%
print(tried)
figures.tried_batches(tried, largest=found)

# %%
show_source(measure.peak.largest_batch)

# %% [markdown]
# **Explain.** Eight tries from 1 to 128, then six to halve the gap from 64 to 128 down to one: about $2 \log_2$ of the batch.
#
# What is a try? A *whole update after the first one*. AdamW makes its states in the first `step()`, when the activations are already gone. States and activations are in the memory together only from the second update on. So the first update can need up to 8 bytes less for each parameter, 12.5 GB for GPT-2 XL, and a batch that just fits it is too large. If you restart the program for each try, make two updates. And a try must use the longest sequences that will come.
#
# On a GPU "does not fit" is an error of CUDA's allocator. A CPU has no such border and would crowd out other programs, so the demo counts the bytes of all tensors and compares them with a limit that you set. First the peaks of two updates of a small model:

# %%
layers = torch.nn.Sequential(*(torch.nn.Linear(64, 64) for _ in range(4)))
optimizer = torch.optim.AdamW(layers.parameters(), fused=True)
samples = torch.randn(500, 64)


def one_update():
    layers(samples).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()


def peak_bytes():
    """The most bytes at a time in the next update."""
    states = [t for kept in optimizer.state.values() for t in kept.values()]
    before = [*layers.parameters(), *states, samples]
    return measure.peak.peak_bytes(one_update, before)


first, second = peak_bytes(), peak_bytes()
parameters = sum(p.numel() for p in layers.parameters())
print(f"first update {first:,} B, second {second:,} B")
expect(8, (second - first) / parameters, 1e-3, "B", "more for a parameter")

# %% [markdown]
# And the search:

# %%
small = {"ranks": 1, "model": "tiny", "limit_mb": 8}
searched = demos.run("largest_batch", stream=False, **small)
assert searched.found == searched.predicted
figures.lines(
    {"counted": sorted((batch, size / 1e6) for batch, size, _ in searched.tries)},
    "samples in a batch",
    "MB of all tensors, at most",
    "What each try found",
    level={"the limit": searched.limit_bytes / 1e6},
    mark={f"{searched.found} samples": searched.found},
)

# %% [markdown]
# The line is straight: each sample adds the same number of bytes. So you need not try: theory gives the same batch. The demo adds what chapters 3 and 4 leave out as small: the means and scales of the norms, a sum for each token and head of attention, and the first gradients of the backward pass. Together they are 1 % here, and 1 % of 100 samples is one sample.
#
# The benchmark found that FSDP trains GPT-2 XL on those two cards, and that DDP does not. Chapter 9 computed the same: the states alone take 24.9 GB. Here is the same on a small scale: two ranks, torch's DDP and `fully_shard`, and a GPT of 0.8 million parameters, whose states take 13 MB.

# %%
shared = {}
for limit_mb in (14, 20):
    for technique in ("ddp", "fsdp"):
        how = {"technique": technique, "limit_mb": limit_mb, "stream": False}
        tried = demos.run("largest_batch", ranks=2, model="small", **how)
        print(f"{limit_mb} MB, {technique}: {tried.found}, predicted {tried.predicted}")
        assert tried.found == tried.predicted
        shared[limit_mb, technique] = tried.found
assert shared[14, "ddp"] == 0 < shared[14, "fsdp"]
assert 0 < shared[20, "ddp"] < shared[20, "fsdp"]

# %% [markdown]
# With 14 MB DDP has no room for a single sample, and FSDP trains six. With 20 MB it is 5 against 11, on each rank. When memory is fullest, DDP holds 13.0 MB beside the activations: weights, gradients and AdamW's two numbers. FSDP holds half of the weights and of AdamW's numbers, 4.9 MB, and for a moment 1.7 MB of gathered weights: two layers and what lies outside the layers. Hardly any gradients are there yet. So it saves 6.5 MB, room for nearly six samples of 1.1 MB.
#
# **Remember**
# - Double, then halve: $2 \log_2 b$ tries, each a whole update *after the first*, with the longest sequences.
# - Compute first. Try once, to be sure.

# %% [markdown]
# ## 15.9 Rehearsal
#
# Chapter 13 chose a layout for a cluster. To run it you need files: a script for Slurm, flags for Megatron, a configuration for DeepSpeed. `course plan … --emit` writes them:
#
# ```
# course plan llama3-8b --gpu H100-SXM --nodes 2 --batch 64 --emit deepspeed
# ```
#
# This command takes the fastest layout, here FSDP on all 16 GPUs, and prints three files: the configuration, the program, and a script that starts it on each node. This is the script:

# %%
two_nodes = Cluster(hardware.accelerator("H100-SXM"), nodes=2)
sixteen = Layout(dp=16, zero_stage=3, accumulation=4)
llama = models.MODELS["llama3-8b"]
planned = Job(llama, Recipe(), sixteen, two_nodes, sequence=8192)
print(emitting.files("deepspeed", planned, "llama3-8b")["deepspeed.sh"])

# %% [markdown]
# The first lines say what the plan predicts. The list below them is all that you must give; the script ends at once, with one sentence, if something is missing. `sbatch plan.sbatch bash deepspeed.sh` starts it, with `plan.sbatch` from `--emit slurm`. There is a reason for a script: `$HEAD` and `$PORT` have values only on the nodes. On a command line your login shell would replace them, by nothing. `--emit` also knows `slurm`, `trainjob`, `torchtitan`, `megatron` and `accelerate`. The tests of the course read each of these files by the engine's own parser.
#
# Before 1,024 GPUs start, you can run one of the 1,024 ranks on your laptop. PyTorch has a process group that only pretends: every collective returns at once, with whatever is in the buffer. With tensors that have a shape and no memory, the real FSDP2 and tensor-parallel code of that rank runs, and its states and its collectives can be counted. This is a **rehearsal** (演练). It tells you nothing about times or losses, and everything about what is kept and sent.
#
# Take two layers of Llama 3 8B on 128 data-parallel × 8 tensor-parallel ranks, and of these the last rank, 1,023:

# %%
two_layers = replace(models.MODELS["llama3-8b"], layers=2)
fp32 = Recipe(parameters="fp32", gradients="fp32", compute="bf16", master_copy=False)
layout = Layout(dp=128, tp=8, zero_stage=3)
result = rehearse(Job(two_layers, fp32, layout, sequence=1024), rank=1023)
print("\n".join(result.report().splitlines()[:9]))
assert result.explained

# %%
block = torch.zeros(16_032, 1).chunk(128)
assert len(block[0]) == 126 and len(block[-1]) == 30

# %% [markdown]
# FSDP2 cuts each tensor into blocks of rows, as `torch.chunk` does: all blocks are equally long, except at the end. Tensor parallelism gives this rank's group 16,032 of the 128,256 rows of the embedding, on average 125.25 rows for each of 128 ranks. A block has 126 rows, since 125.25 is rounded up. 127 ranks hold that many, and 30 rows are left for the last. It reserves memory for 126 all the same (the *padding* in the table), but the optimizer keeps moments only for the rows that are there.
#
# `course rehearse` does this for whole models, in about a minute. Here is a recorded one, for a layout in which Llama 3 8B could be trained, with all 32 layers and sequence parallelism:

# %%
said = recorded("rehearse_1024")
print("\n".join(said.splitlines()[:2]))
found = re.findall(r"^(\S+ \S+), calls +(\d+) +(\d+)", said, re.M)
calls = {name: {"theory": int(a), "rehearsed": int(b)} for name, a, b in found}
assert calls["tp all-reduce"] == {"theory": 3, "rehearsed": 68}
colours = {"theory": style.THEORY, "rehearsed": style.MEASURED}
figures.grouped_bars(calls, "Calls in an update", "{:.0f}".format, colours)

# %% [markdown]
# Only `tp all-reduce` differs. The rehearsal has 65 calls more: with sequence parallelism every norm sees only its part of the tokens, so the gradients of its weights must be added up, and PyTorch does that tensor by tensor. The extra bytes are negligible, but each of the 65 calls pays a message's latency. This is what a rehearsal finds.
#
# **Remember**
# - Let the plan write the files; do not type its numbers a second time.
# - A rehearsal runs the real code of one rank. Every byte that differs from theory gets an explanation.

# %% [markdown]
# ## The answer
#
# Wrappers replace parameters by pieces. AdamW does not mind, but Muon, 8-bit states and the scaler of fp16 do, unless a DTensor gathers what they need. The compiler makes a new graph for a new shape and ends a graph at each value. Count all of it on two ranks, and rehearse one rank before you rent a thousand.

# %% [markdown] tags=["exercise"]
# ### 15.8 Predict: graphs
#
# A model is compiled with the default settings, and its batches have 8 samples each. How many graphs have been made (a) after the first update, (b) after three epochs of 100 samples, (c) after three epochs of 97 samples, (d) after three epochs of 97 samples with
# `drop_last=True`, (e) after one epoch of 100 samples, and a second one of batches of 32? Then count with `measure.gradients.log_graphs` as in section 15.5.

# %% [raw] tags=["hints"]
# importance 2, difficulty 3
# How large is the last batch of 100 samples, and of 97?
# The second size makes one graph for all sizes. Which size is an exception?

# %% tags=["exercise"]
graphs = [..., ..., ..., ..., ...]
### BEGIN SOLUTION
graphs = [1, 2, 2, 1, 2]
# (b) 8, then 4: one graph for all sizes; (c) 8, then 1, which has its own;
# (d) 8 only; (e) 8, then 4 for all sizes, which 32 fits
### END SOLUTION
check("15.8", graphs)
