# %% [raw] tags=["sitting"]
# question: Can a matrix product hide the messages that it waits for?
# importance: 2
# difficulty: 4
# group: alone

# %% [markdown]
# # 10 Tensor parallelism: multiply while the next tokens arrive
#
# A GPT layer with hidden size 8192 takes 3.73 ms on eight H100. For 1.23 ms of these the GPUs wait for messages and compute nothing. How much of that can
# they win back, and does it rescue the second server of section 10.7?

# %%
import torch
import torch.distributed as dist
from torch.nn.functional import linear

from course_lib import (
    demos,
    expect,
    launch,
    measure,
    predict,
    scratch,
    show_source,
    style,
)
from course_lib.chapters.ch10_tensor_parallelism import figures, overlapped_product
from course_lib.theory import (
    Cluster,
    CutLayer,
    collectives,
    group_link,
    hardware,
    units,
)

launch.warm_up()
torch.set_num_threads(1)

# %% [markdown]
# ## 10.8 Multiply while the next tokens arrive
#
# Must a product wait for *all* of its
# input? With sequence parallelism each rank already has an eighth of the tokens. It can multiply these at once, while its neighbour's eighth
# travels to it. Then it multiplies those, while the next eighth travels. This is **asynchronous tensor parallelism** (异步张量并行, async TP), or *collective
# matmul* (Wang et al. 2023, [ASPLOS](https://doi.org/10.1145/3567955.3567959)).

# %%
show_source(scratch.tensor.gather_and_multiply, scratch.tensor.multiply_and_scatter)

# %% [markdown]
# `ring.visits` is the ring of chapter 6. It yields (owner, share) pairs, starting with this rank's own share, and the next transfer is
# already under way when a share is yielded. At the end of a pair of matrices it works in the opposite order: the *sum* for a rank's tokens travels, and each rank adds its part. (This is
# the forward pass. The backward pass of each function is the other one.)
#
# **Predict.** Four ranks, 64 tokens of 32 features in fp32. One all-gather sends 6144 bytes from each rank. How many bytes when it is cut into
# shares?

# %%
share_bytes = predict("10.share_bytes", "Bytes from a rank?", yours=None, unit="B")


# %%
def in_shares():
    """A product that hides its all-gather: its error, and what was sent."""
    torch.manual_seed(0)
    ring = scratch.context.SequenceRing(dist.group.WORLD)
    x, weight = torch.randn(64, 32), torch.randn(8, 32)
    mine = x.chunk(ring.ranks)[ring.rank]
    with measure.wire.log_wire() as log:
        result = scratch.tensor.gather_and_multiply(mine, weight, ring)
    error = measure.gradients.relative_difference(result, linear(x, weight))
    return error, log.sent()["send-recv"]


# %%
cut_up = launch.run(in_shares, ranks=4)
assert all(error < 1e-5 for error, _ in cut_up)

# %%
messages, message_bytes = cut_up[0][1]
assert messages == 3
gathered = collectives.sent_bytes("all-gather", 64 * 32 * 4, 4)
expect(gathered, message_bytes, label="bytes", unit="B", yours=share_bytes)

# %% [markdown]
# **Explain.** The same bytes travel, in three messages instead of one collective. Only the time changes. Let $C$ be the time of the product and $M$
# that of its messages:
#
# $$\text{one after the other: } C + M, \qquad \text{share by share: } \max\left(C,\ M + \frac{C}{t}\right).$$
#
# If the link is the slower one it never rests, and once the last share has arrived, one $t$-th of the product is left. Two products of the layer on
# eight H100: `up` is a matrix of $h \times 4h$, `out` of $h \times h$. (`out` gathers in the backward pass, for the gradient of its input. Forward it
# scatters, which takes as long.) The number in a box is that of the share:

# %% tags=["drawing"]
h100 = hardware.accelerator("H100-SXM")


def layer(tp, servers):
    """A GPT layer with hidden size 8192 on `tp` GPUs."""
    link = group_link(Cluster(h100, nodes=servers), "all-reduce", tp, 1)
    return CutLayer(8192, tp, h100.peak_flop_per_s, link)


eight, sixteen = layer(8, 1), layer(16, 2)
products = overlapped_product.layer_products(eight)
figures.two_lanes({name: products[name].tasks for name in ("up", "out")})

# %% [markdown]
# `up` hides its 0.15 ms of messages behind 0.28 ms of work. `out` has a quarter of that work. There the messages are slower, and 0.09 ms of them stay
# exposed.
#
# **Predict.** Without overlap, a layer is 1.26 times as fast with 16 GPUs in two servers as with 8 in one. What is the factor with overlap?

# %%
rescued = predict("10.rescued", "8 over 16, with overlap?", yours=None)

# %%
hiding = {
    t: overlapped_product.overlapped_seconds(cut)
    for t, cut in {8: eight, 16: sixteen}.items()
}
assert round(eight.seconds / hiding[8], 2) == 1.39
expect(1.23, hiding[8] / hiding[16], within=0.01, label="8 / 16", yours=rescued)

# %% tags=["drawing"]
times = {}
for t, cut in {8: eight, 16: sixteen}.items():
    exposed = {"in turn": cut.communication_s, "overlapped": hiding[t] - cut.compute_s}
    for way, seconds in exposed.items():
        times[f"{t} GPUs, {way}"] = {
            "computing": cut.compute_s,
            "exposed messages": seconds,
        }
figures.stacked_bars(
    times,
    "One layer, forward and backward",
    units.format_duration,
    colours={"exposed messages": style.MESSAGES},
)

# %% [markdown]
# **Explain.** In one server 85 % of the messages disappear, and the layer gets 1.39 times as fast. Over two servers each product is half as long and its
# messages are longer, so more than half stays exposed. Overlap makes the first server better, not the second one.
#
# All this is ideal, and not measured here: it needs GPUs whose links work while they compute. PyTorch's version in torchtitan made
# the forward pass of Llama 3 70B up to 20 % faster, and the whole step 8 %
# ([PyTorch forum](https://discuss.pytorch.org/t/distributed-w-torchtitan-introducing-async-tensor-parallelism-in-pytorch/209487)). Google's made
# training on TPUs 1.14 to 1.38 times as fast (Wang et al.). Three effects eat into the ideal 1.39:
#
# - An eighth of a product uses a GPU less well than the whole one.
# - Messages and products share the memory's bandwidth, and sometimes the cores. So implementations copy straight from one GPU's memory into another's,
#   through *user buffers* or *symmetric memory*: buffers that all GPUs of the group have registered with each other once. Two measurements were made for FSDP's gathers
#   of weights. On eight H100, gathers of 1 to 16 MiB became 1.3 to 2.1 times as fast, and those of 256 MiB no faster
#   ([Megatron-LM issue 5655](https://github.com/NVIDIA/Megatron-LM/issues/5655)); one share of ours has 8 MiB. A gather that leaves the cores to a product beside it
#   made both together 15 % faster ([PyTorch pull request 176613](https://github.com/pytorch/pytorch/pull/176613)).
# - The baseline hides something, too. Megatron-LM runs the reduce-scatter of a gradient beside the product for the weights' gradient, which nothing waits
#   for ([layers.py](https://github.com/NVIDIA/Megatron-LM/blob/main/megatron/core/tensor_parallel/layers.py)).
#
# In Megatron-LM the option is `--tp-comm-overlap` and needs sequence parallelism; torchtitan's `enable_async_tensor_parallel` needs `torch.compile`.
#
# **Remember**
# - Share by share, a product takes $\max(C,\ M + C/t)$ instead of $C + M$. The messages of small products stay exposed.
# - Overlap helps one server more than two.

# %% [markdown]
# ## 10.10 Together with data parallelism
#
# Four ranks form a mesh of 2 × 2. Each tensor-parallel pair is one copy of the
# model. The copies see different samples, and FSDP (chapter 9) shards the weights over them once more:

# %% tags=["drawing"]
places = [{"pp": 0, "dp": rank // 2, "tp": rank % 2} for rank in range(4)]
figures.rank_mesh(places)

# %%
grid = demos.run("fsdp_tp", ranks=4, steps=4, stream=False)
report = grid.report().splitlines()
print(*(line for line in report if "predicted" not in line), sep="\n")

# %% tags=["drawing"]
copies, sharded, _ = grid.versions
assert copies.sent["all-reduce"][0] == 13 + 2  # and two buckets of gradients
assert sharded.sent["all-reduce"][0] == 13
assert 2 * sharded.stored["weights"] == copies.stored["weights"]
figures.stored_by_version(
    {it.name: it.stored for it in grid.versions},
    {
        it.name: sum(
            collectives.sent_bytes(operation, total.size_bytes, 2)
            for operation, total in it.sent.items()
        )
        for it in grid.versions
    },
    "One rank of four: what it stores, and sends in groups of two",
)

# %% [markdown]
# The 13 all-reduces are still there: tensor parallelism does not notice what goes on along the other axis. Data parallelism adds its own messages, and the
# stored weights halve once more. In a terminal: `course demo fsdp_tp --ranks 4 --tp 2`.
#
# **Remember**
# - The axes of a mesh do not disturb each other: each has its own groups and messages.

# %% [markdown]
# ## The answer
#
# In one server, ideally, 85 % of the waiting disappears: the layer takes 2.69 ms instead of 3.73. With a second server it is 1.23 times as fast, still far from 2.

# %% [markdown] tags=["exercise"]
# ### 10.14 Predict: a slower NVLink
#
# The H800 is an H100 whose NVLink moves 200 GB/s one way instead of 450. Eight of them share the GPT layer of section 10.7, with products that hide their
# messages (section 10.8). What percentage of the messages' time is hidden? How many ms does the layer take, forward and backward? And which is faster: `"H800"` with
# overlap, or `"H100"` without? Guess the last one first.

# %% [raw] tags=["hints"]
# importance 2, difficulty 3
# Hidden is what is not exposed: four products, twice each, against communication_s.
# No product hides all of its messages, so the layer takes longer than its arithmetic.

# %% tags=["exercise"]
### BEGIN GIVEN
h100, h800 = hardware.accelerator("H100-SXM"), hardware.accelerator("H800-SXM")
# layer = CutLayer(8192, 8, gpu.peak_flop_per_s, gpu.inside); layer.communication_s; layer.seconds
# overlapped_product.layer_products(layer)["qkv"].exposed_s; each product comes twice
# overlapped_product.overlapped_seconds(layer)
### END GIVEN
hidden_percent, layer_ms, faster = ..., ..., ...
### BEGIN SOLUTION
h100, h800 = hardware.accelerator("H100-SXM"), hardware.accelerator("H800-SXM")
slow = CutLayer(8192, 8, h800.peak_flop_per_s, h800.inside)
fast = CutLayer(8192, 8, h100.peak_flop_per_s, h100.inside)
products = overlapped_product.layer_products(slow).values()
exposed_s = 2 * sum(product.exposed_s for product in products)
hidden_percent = 100 * (1 - exposed_s / slow.communication_s)
layer_ms = 1000 * overlapped_product.overlapped_seconds(slow)
faster = "H800" if layer_ms < 1000 * fast.seconds else "H100"
### END SOLUTION
check("10.14", [hidden_percent, layer_ms, faster])
