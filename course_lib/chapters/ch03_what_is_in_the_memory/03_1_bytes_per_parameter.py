# %% [raw] tags=["sitting"]
# question: Why does training a model of 13.5 GB not fit into 80 GB?
# importance: 5
# difficulty: 2
# group: alone
# needs: 1

# %% [markdown]
# # 3 Bytes per parameter
#
# LLaMA-2 7B is a file of 13.5 GB. On a card of 24 GB its training stops with "CUDA out of memory" before the first
# batch is through. Even a card of 80 GB is too small. **Why?**
#
# By the end of this sitting you can
#
# - name the seven consumers of a GPU's memory (显存), and say when each of them is there,
# - compute exactly how many bytes a model's parameters cost in training,
# - say why one tool counts 16 bytes per parameter, another 18 and a third 20,
# - tell GB from GiB before the confusion costs you 7 %.
#
# You need chapter 1. Everything here is for one GPU.

# %%
from dataclasses import replace

import torch
from torch.nn.functional import cross_entropy

from course_lib import expect, measure, predict, scratch, show_source, style
from course_lib.chapters.ch03_what_is_in_the_memory import figures
from course_lib.demos.shared.text import VOCAB, Windows
from course_lib.theory import (
    RECIPES,
    Job,
    Layout,
    Recipe,
    TransformerShape,
    model_states,
    models,
    step_timeline,
    training_memory,
    units,
)

torch.set_num_threads(1)

# %% [markdown]
# ## 3.1 Billions, GB and GiB
#
# A **parameter** (参数) is one number that training changes. Nearly all of them are *weights*: a weight says how strongly one number of a layer's
# input affects one number of its output. Some models add a *bias* (偏置) to each output; LLaMA does not.
#
# The name of a model says how many parameters it has. **B** is a billion, $10^9$ (十亿), and **M** is a million, $10^6$ (百万). So "70b" means about
# $70 \times 10^9$ parameters. The names are rounded, some of them generously:

# %%
for name, label in (("llama2-7b", "7b"), ("llama2-13b", "13b"), ("llama2-70b", "70b")):
    exact = models.MODELS[name].parameters().total
    off = exact / units.parse_count(label) - 1
    print(f"{name:<12}{exact:>16,}   {off:+.1%} against its name")

assert models.MODELS["llama2-70b"].parameters().total == 68_976_648_192

# %% [markdown]
# Memory has two units that look alike:
#
# - **GB** (gigabyte) is $10^9$ bytes. Disks, networks and data sheets use it.
# - **GiB** (gibibyte) is $2^{30} = 1{,}073{,}741{,}824$ bytes, 7.4 % more. PyTorch's error messages
#   ("tried to allocate 2.00 GiB") and `nvidia-smi` (in MiB, $2^{20}$ bytes) use it.
#
# If you mix them up, a plan with 5 % to spare is 2 % too large. In sums by hand, "80 GB" is $80 \times 10^9$ bytes. (Cautious: an H200, sold with
# 141 GB, reports 143,771 MiB, which is 150.8 GB.)

# %%
# the model states of GPT-2 1.5B, which section 3.2 adds up
in_gb, in_gib = (units.format_bytes(24_921_779_200, unit) for unit in ("GB", "GiB"))
assert round(143_771 * units.MIB / units.GB, 1) == 150.8
print(in_gb, "=", in_gib)

# %% [markdown]
# **Remember**
# - GB is $10^9$ bytes and GiB is $2^{30}$ bytes, 7.4 % more.

# %% [markdown]
# ## 3.2 Seven consumers
#
# While a GPU trains, seven kinds of things are in its memory:
#
# | | consumer | grows with | lives |
# |---|---|---|---|
# | 1 | weights (权重) | parameters | always |
# | 2 | gradients (梯度) | parameters | from the backward pass to the update |
# | 3 | optimizer states (优化器状态), and a master copy where there is one (section 3.3; note 000's list leaves it out) | parameters | always |
# | 4 | inputs and labels (标签) | batch × sequence | one micro-step |
# | 5 | intermediate results, also called activations (激活值) | batch × sequence × width × layers | from the forward to the backward pass |
# | 6 | temporary buffers (临时缓冲区) | the largest single operation | one operation |
# | 7 | framework overhead: what CUDA and NCCL, the library for messages between GPUs, need for themselves | hardly at all | always |
#
# The first three are called the **model states**. They depend only on the number of parameters and on a few choices, so they can be computed
# exactly. (Note 003 counts gradients and optimizer states among the intermediate results. But they are still there when the batch is gone.)
#
# Here is the bill for GPT-2 1.5B with one sequence of 1024 tokens, everything in fp32, which takes 4 bytes a number (intermediate results and temporary buffers: section 3.4):

# %%
gpt2_xl = models.MODELS["gpt2-1.5b"]
bill = training_memory(gpt2_xl, RECIPES["fp32-16"], micro_batch=1)
assert bill.model_states_bytes == 24_921_779_200
assert bill.model_states_bytes + units.GIB > 24 * units.GIB
figures.consumers(
    bill, title="GPT-2 1.5B, fp32, AdamW, micro-batch 1", capacity_bytes=24 * units.GB
)

# %% [markdown]
# Model states and overhead alone are 25.99 GB, too much even if the card's 24 GB are GiB (25.77 GB). So no smaller batch makes this training fit. In a published case (huggingface.co/blog/pytorch-fsdp) two such cards could
# train it only with the model states divided between them.

# %% [markdown]
# ### One update, point by point
#
# When is each consumer there? A GPT of 4 layers, in which 64 numbers represent each token, has 0.85 MB of weights in
# fp32. The optimizer AdamW trains it on 4 samples of 64 characters. This is its second update.
#
# **Predict.** At what point of the update is memory fullest: at its beginning, in the middle or at its end? And how many times the weights is it then? Guess.

# %%
times = predict("3.over_time", "Fullest point / weights?", yours=None)

# %% [markdown]
# **Measure.** `one_step` follows every tensor from its birth to its death and sorts it by what it is for: what becomes
# a parameter's `.grad` is a gradient, and what autograd keeps in the forward pass is an intermediate result.

# %%
show_source(measure.memory_over_time.one_step)

# %%
four = scratch.gpt.GPT(layers=4, hidden=64, heads=4, vocab=VOCAB, context=64)
inputs, labels = Windows(sequence=64).batch(range(4))
adamw = torch.optim.AdamW(four.parameters(), fused=True)  # fused: section 3.3


def loss_of_batch():
    """The mean loss of the 4 samples."""
    return cross_entropy(four(inputs).flatten(0, 1), labels.flatten())


first, second = [
    measure.memory_over_time.one_step(four, adamw, loss_of_batch, [inputs, labels])
    for _ in range(2)
]

# %%
# torch's habits with the logits and the gradients: section 3.4
in_torch = replace(RECIPES["fp32-16"], loss="eager", gradient_life="backward")
shape = TransformerShape(layers=4, hidden=64, heads=4, ffn=256, vocab=VOCAB, context=64)
four_layers = Job(shape, in_torch, Layout(micro_batch=4))
run = step_timeline(four_layers, overhead_bytes=0)
weight_bytes = 4 * sum(p.numel() for p in four.parameters())
expect(
    run.peak_bytes / weight_bytes,
    second.peak_bytes / weight_bytes,
    within=0.02,
    label="fullest point / weights",
    yours=times,
)

# %%
figures.memory_over_time(
    {"predicted": run, "measured": second}, "One update of a small GPT"
)

# %% [markdown]
# **Explain.** Memory is fullest in the middle, when the backward pass begins: 8.6 times the weights. Weights and optimizer states are there all the time. Intermediate results pile up layer by layer in the forward pass, and go in the backward pass, while the gradients come. By the update no intermediate result is left. (The yellow teeth are temporary buffers of single operations, which theory counts only at a few points.)
#
# Step through it yourself. Before each step, say what comes next and what goes. Then set `recompute` to full, the subject of chapter 4. What becomes of the intermediate
# results?

# %%
from course_lib.chapters.ch03_what_is_in_the_memory import steppers

steppers.memory_step(samples=4)

# %% [markdown]
# **Answer.** With `recompute` each layer keeps only its input. In the backward pass the intermediate results are computed again, for one layer at a time.
#
# The very *first* update is different, because AdamW creates its states when it first needs them. So a job may survive its first forward and backward pass, and run out of memory when AdamW makes its states, or in the second backward pass:

# %%
assert first.sizes["optimizer"][0] == 0 < first.sizes["optimizer"][-1]
figures.memory_over_time({"first update": first, "second update": second})

# %% [markdown]
# **Remember**
# - Model states depend on the parameters, intermediate results on the batch.
# - The first update is no test of memory: AdamW's states are not there yet.

# %% [markdown]
# ## 3.3 Bytes per parameter
#
# How do 1.56 billion parameters become 24.92 GB? Each of them takes four numbers of 4 bytes:
#
# weight 4 + gradient 4 + Adam's momentum 4 + Adam's variance 4 = **16 bytes per parameter**.
#
# **Adam** and **AdamW** keep two numbers for each parameter: a running mean of its gradient (momentum, 动量) and a running mean of the gradient's square (variance, 方差). (Note
# 003 calls them "momentum and change".) Other optimizers keep less:
#
# | optimizer | state per parameter | what it keeps |
# |---|---|---|
# | SGD | 0 B | nothing |
# | SGD with momentum | 4 B | one fp32 number |
# | AdamW | 8 B | two fp32 numbers |
# | 8-bit AdamW | 2 B | two one-byte numbers, and a scale for each block of them (the deeper sitting) |
# | Adafactor, without momentum | about 0 B | for each matrix one number per row and one per column, in place of all variances (arXiv:1804.04235) |
# | Muon | 4 B | one momentum for each matrix; embeddings, head and norms usually stay with AdamW (arXiv:2502.16982) |
#
# Check the first three: a small GPT in fp32 makes one update with each. A ledger then adds up the bytes of all tensors that training keeps.

# %%
show_source(scratch.gpt.ledger)

# %%
inputs, labels = Windows(sequence=64).batch(range(8))


def new_gpt():
    """A GPT of 112,384 parameters."""
    return scratch.gpt.GPT(layers=2, hidden=64, heads=4, vocab=VOCAB, context=64)


def ledger_after_one_update(model, optimizer):
    """Bytes by consumer after one update on 8 samples."""
    scratch.accumulation.loss_sum(model(inputs).float(), labels).backward()
    optimizer.step()
    return scratch.gpt.ledger(model, optimizer, batch=[inputs, labels])


# %%
optimizers = {
    "sgd": lambda p: torch.optim.SGD(p, lr=1e-3),
    "momentum": lambda p: torch.optim.SGD(p, lr=1e-3, momentum=0.9),
    "adamw": lambda p: torch.optim.AdamW(p, lr=1e-3),
}
ledgers = {}
for name, make in optimizers.items():
    small = new_gpt()
    ledgers[name] = ledger_after_one_update(small, make(small.parameters()))

# %%
small_shape = replace(shape, layers=2)
count = small_shape.parameters().total
expect(8 * count, ledgers["adamw"]["optimizer"], label="AdamW's states", unit="B")

# %% tags=["drawing"]
for name, ledger in ledgers.items():
    recipe = Recipe("fp32", "fp32", optimizer=name, master_copy=False)
    predicted = training_memory(small_shape, recipe, micro_batch=8).consumers
    assert all(size == predicted[part] for part, size in ledger.items())
figures.stacked_bars(ledgers, "Measured after one update", units.format_bytes)

# %% [markdown]
# ### Mixed precision: does bf16 halve the bill?
#
# Large models compute in **bf16**, which takes 2 bytes a number. Many programs keep weights and gradients in it as well, and use fp32 only where its digits matter: **mixed precision** (混合精度).
#
# **Predict.** We cast the small GPT to bf16 and give it to torch's AdamW. How many bytes per parameter do weights, gradients and AdamW's states take together?

# %%
cast = predict("3.all_in_bf16", "Bytes per parameter?", yours=None)


# %%
def per_parameter(ledger):
    """Bytes of the model states for each parameter."""
    parts = ("weights", "gradients", "optimizer")
    return sum(ledger[part] for part in parts) / count


short = new_gpt().bfloat16()
found = ledger_after_one_update(short, torch.optim.AdamW(short.parameters(), lr=1e-3))
expect(
    Recipe(optimizer="adamw-bf16", master_copy=False).bytes_per_parameter,
    per_parameter(found),
    label="bytes per parameter",
    yours=cast,
)

# %% [markdown]
# **Explain.** 8 bytes, half of 16: torch's AdamW keeps its two numbers in the format of the weights, so the sum is $2 + 2 + (2 + 2)$.
#
# The memory is saved, but the training suffers. bf16 has only 8 binary digits: the next number after 1.0 is 1.0078. So an update of 0.001 leaves a weight of 1.0 unchanged, and so do a thousand of
# them:

# %%
weight = torch.tensor(1.0, dtype=torch.bfloat16)
for _ in range(1000):
    weight += 0.001
print(weight)
assert weight == 1.0

# %% [markdown]
# The remedy is a **master copy** (主权重副本) of the weights in fp32. Each update is applied to the master copy, and the result is rounded into the bf16 weights.
#
# **Predict.** Keep the master copy in fp32, and Adam's two numbers in fp32 again. How many bytes per parameter are there in all?

# %%
total = predict("3.with_master_copy", "Bytes per parameter?", yours=None)

# %%
half = new_gpt().bfloat16()
optimizer = scratch.precision.MasterAdamW(half.parameters(), lr=1e-3)
mixed = ledger_after_one_update(half, optimizer)
expect(
    RECIPES["mixed-16"].bytes_per_parameter,
    per_parameter(mixed),
    label="bytes per parameter",
    yours=total,
)

# %%
expect((4 + 8) / 2, mixed["optimizer"] / mixed["weights"], label="optimizer / weights")

# %% [markdown]
# **Explain.** $2 + 2 + (4 + 8) = 16$, as many as in fp32. What bf16 saves is intermediate results and time: an A100 multiplies at up to 312 TFLOP/s (trillion operations a second) in bf16 but at 19.5 in fp32, PyTorch's default (NVIDIA's data sheet; 156 in TF32, which is fp32 with fewer digits).
#
# With its master copy the optimizer takes six times as much as the weights. (Note 000 says "twice". That is true of fp32 weights: 8 bytes beside 4.) **Adam outweighs the model.**
#
# An update leaves these 16 bytes behind. *During* it, PyTorch's default AdamW on a GPU makes temporary buffers of 4 more bytes per parameter. The option `fused=True` avoids them.

# %% [markdown]
# ### Deeper: the course's own AdamW with a master copy
#
# Try exercise 3.11 first, in which you write it yourself. Then compare. Follow one weight through its first update, with gradient 0.5. The momentum becomes $0.1 \cdot 0.5 = 0.05$ and the
# variance $0.001 \cdot 0.25 = 0.00025$. Both are too small, because they began at zero. Divided by $1 - 0.9$ and $1 - 0.999$ they are 0.5 and 0.25. The weight
# moves by lr $\cdot\, 0.5 / \sqrt{0.25}$, which is one learning rate.

# %%
show_source(scratch.precision.adamw_update, scratch.precision.MasterAdamW)

# %% [markdown]
# ### Why tools disagree
#
# | bytes | who counts so | what |
# |---|---|---|
# | 16 | ZeRO paper (arXiv:1910.02054) | 16-bit weights 2, 16-bit gradients 2 (fp16 there, bf16 today), master copy 4, Adam 8 |
# | 18 | Megatron-LM | gradients in fp32: 2 + 4 + 4 + 8 |
# | 20 | DeepSpeed's `estimate_zero2_model_states_mem_needs` for one GPU; Ultra-Scale Playbook | an fp32 buffer in which gradients add up, beside the bf16 gradients: 2 + 2 + 4 + 4 + 8 |
#
# All three are right: they describe different programs. Say which one your number follows.

# %% tags=["drawing"]
one = {name: model_states(1, recipe) for name, recipe in RECIPES.items()}
assert [r.bytes_per_parameter for r in RECIPES.values()] == [16, 18, 20, 16]
figures.stacked_bars(
    {
        name: {
            "weights": states.parameters_bytes,
            "gradients": states.gradients_bytes,
            "gradient buffer, fp32": states.gradient_buffer_bytes,
            "master copy": states.master_copy_bytes,
            "optimizer": states.optimizer_state_bytes,
        }
        for name, states in one.items()
    },
    "Bytes per parameter",
    colours={"gradient buffer, fp32": style.TEMPORARY, "master copy": style.STATES},
)

# %% [markdown]
# **Remember**
# - bf16 with AdamW: 2 + 2 + 4 + 8 = 16 bytes per parameter. Three quarters of them are the optimizer's.
# - State per parameter: SGD 0, momentum 4, AdamW 8, 8-bit AdamW 2 bytes.
# - bf16 weights need an fp32 master copy, or small updates are rounded away.

# %% [markdown]
# ## The answer
#
# LLaMA-2 7B has 6.74 billion parameters, and its file holds 2 bytes for each. Training needs 16:

# %%
llama = model_states(models.MODELS["llama2-7b"].parameters().total, RECIPES["mixed-16"])
assert llama.parameters_bytes < 13.5 * units.GB
assert round(units.gb(llama.model_states_bytes), 1) == 107.8
print(llama.explain("GB"))

# %% [markdown]
# The file is only the first line, an eighth of the **108 GB** that training needs before the first sample arrives. The next sitting says how much comes on top, and chapters 8 and 9 divide the model states among several cards.
#
# **Read on.** Rajbhandari et al. 2020, *ZeRO*, section 3 (arXiv:1910.02054): where the memory goes.

# %% tags=["exercise"]
from course_lib import check, hint, solution

# %% [markdown] tags=["exercise"]
# ### 3.1 Debug: 140 + 140 + 840, and four tools
#
# (published mistake, note 004) "LLaMA-2 70B has 140 GB of weights, 140 GB of gradients and 840 GB of optimizer states (with Adam)." How many of the 840 GB are
# not Adam's? (Compute with 70 billion parameters, as the note does.)
#
# Four tools print the model states of the same model, with its exact 68,976,648,192 parameters. All of them write "GB", and some mean GiB. How many bytes per parameter does each
# count, and does it mean GiB? One of them has an 8-bit optimizer.

# %% [raw] tags=["hints"]
# importance 3, difficulty 2
# 840 GB are 12 bytes per parameter. Which things of which size are they?
# Divide what a tool prints by the parameters, once as GB and once as GiB. Bytes per parameter are whole numbers.
# The table in section 3.3 has three of the four. The fourth: 8-bit AdamW.

# %% tags=["exercise"]
not_adams_gb = ...
per_parameter = {"1,028 GB": ..., "1,242 GB": ..., "1,285 GB": ..., "690 GB": ...}
means_gib = {"1,028 GB": ..., "1,242 GB": ..., "1,285 GB": ..., "690 GB": ...}
### BEGIN SOLUTION
not_adams_gb = 4 * 70
per_parameter = {"1,028 GB": 16, "1,242 GB": 18, "1,285 GB": 20, "690 GB": 10}
for says, size in per_parameter.items():  # the unit in which it comes out
    printed = float(says.replace(",", "").split()[0])
    gb = size * 68_976_648_192 / 1e9
    means_gib[says] = abs(gb - printed) > 1
### END SOLUTION
check("3.1", [not_adams_gb, per_parameter, means_gib])

# %% [markdown] tags=["exercise"]
# ### 3.3 Debug: true of one optimizer
#
# (published mistakes, note 000) "SGD takes as much as the weights", and "8-bit AdamW takes half of the weights". Both leave out a condition. Each sentence below is
# true of one optimizer with one precision of weights. Write both: "SGD", "SGD with momentum", "AdamW" or "8-bit AdamW", a comma, and "fp32" or "bf16". All states are fp32, except
# those of 8-bit AdamW. Leave out master copies and scales.

# %% [raw] tags=["hints"]
# importance 3, difficulty 2
# What does each optimizer keep from one update to the next? Plain SGD keeps nothing.
# Divide 4, 8 and 2 bytes by 4, and by 2.

# %% tags=["exercise"]
true_of = {  # for example "SGD, bf16"
    "the state is one number per parameter, and takes as much as the weights": ...,
    "the state is two numbers per parameter, and takes as much as the weights": ...,
    "the state takes half of the weights": ...,
    "the state takes four times the weights": ...,
}
### BEGIN SOLUTION
true_of = {
    "the state is one number per parameter, and takes as much as the weights": "SGD with momentum, fp32",
    "the state is two numbers per parameter, and takes as much as the weights": "8-bit AdamW, bf16",
    "the state takes half of the weights": "8-bit AdamW, fp32",
    "the state takes four times the weights": "AdamW, bf16",
}
### END SOLUTION
check("3.3", true_of)

# %% [markdown] tags=["exercise"]
# ### 3.4 Implement: bytes per parameter
#
# `weights` and `gradients` are "fp32" or "bf16". A master copy
# is kept exactly when the weights are bf16. AdamW's numbers are fp32. `fp32_buffer` says that
# gradients add up in an fp32 buffer beside bf16 gradients. Anything but the two dtypes: `ValueError`.

# %% [raw] tags=["hints"]
# importance 3, difficulty 2
# Add five things: weight, gradient, buffer, master copy, Adam.
# fp32 weights need no master copy, fp32 gradients no fp32 buffer.


# %% tags=["exercise"]
def bytes_per_parameter(weights: str, gradients: str, fp32_buffer: bool = False) -> int:
    """Model-state bytes of one parameter under AdamW."""
    ### BEGIN SOLUTION
    size = {"fp32": 4, "bf16": 2}
    for name, dtype in (("weights", weights), ("gradients", gradients)):
        if dtype not in size:
            raise ValueError(
                f"{name} {dtype!r} is not fp32 or bf16: choose one of them"
            )
    master = 4 if weights == "bf16" else 0
    buffer = 4 if fp32_buffer and gradients == "bf16" else 0
    return size[weights] + size[gradients] + buffer + master + 8
    ### END SOLUTION


check("3.4", bytes_per_parameter)

# %% [markdown] tags=["exercise"]
# ### 3.11 Build: AdamW with a master copy
#
# Write AdamW yourself, and the fp32 master copy of bf16 weights around it. With $g$ the gradient and $n$ the number of the update:
#
# $$m \leftarrow \beta_1 m + (1-\beta_1)\,g, \qquad v \leftarrow \beta_2 v + (1-\beta_2)\,g^2, \qquad
# w \leftarrow w - \text{lr} \cdot \text{decay} \cdot w - \text{lr}\,\frac{m / (1-\beta_1^n)}{\sqrt{v / (1-\beta_2^n)} + \epsilon}$$
#
# The check follows three updates of the arithmetic; then 20 of bf16 weights beside torch's AdamW in fp32; then it counts the bytes. What passes is kept as `mine/master_adamw.py`. Exercise 3.12 and
# `course demo optimizers --parts mine` run on it.

# %% [raw] tags=["hints"]
# importance 4, difficulty 4
# momentum = β₁ · momentum + (1 - β₁) · gradient, and the same of the gradient's square with β₂. Both began at zero: after n updates, which part of a mean do they hold?
# Divide each by 1 - β^step, but keep the moments themselves as they are. The weight shrinks by lr · weight_decay of itself, and loses lr · mean / (root + eps).
# In place: `momentum.mul_(β).add_(gradient, alpha=1 - β)`; `weight.sub_(…)`.
# `weight.detach().float()` is made once, in `__init__`. In `step`, under `@torch.no_grad()`: update it with the gradient in fp32, then `weight.copy_(…)` rounds.

# %% tags=["exercise"]
from collections.abc import Iterable

import torch
from torch import Tensor, nn

### BEGIN GIVEN


def adamw_update(
    weight: Tensor,
    gradient: Tensor,
    momentum: Tensor,
    variance: Tensor,
    *,
    step: int,
    lr: float,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-8,
    weight_decay: float = 0.01,
) -> None:
    """Update number `step` (from 1) of `weight`, `momentum` and `variance`, in place.

    All have one shape and dtype. `gradient` stays as it is.
    """
    ...


class MasterAdamW:
    """AdamW on fp32 copies of bf16 weights, rounded back into them after each update.

    `self.state` is a dict: for each parameter a dict with the fp32 tensors
    "master_copy", "momentum" and "variance", and what else you need that is no tensor.
    """

    def __init__(
        self, parameters: Iterable[nn.Parameter], lr: float, weight_decay: float = 0.01
    ) -> None:
        """`parameters` may be an iterator: go through it once."""
        ...

    @torch.no_grad()
    def step(self) -> None:
        """One update by the gradients in `.grad`; a weight without one stays as it is."""
        ...


### END GIVEN
### BEGIN SOLUTION
from course_lib import show_source
from course_lib.scratch.precision import MasterAdamW, adamw_update

### END SOLUTION

check("3.11", [adamw_update, MasterAdamW])
