# %% [markdown]
# # 17 Capstone

# %% [markdown]
# ## Exercises

# %% tags=["exercise"]
from course_lib import check, hint
from course_lib.theory import planner
from course_lib.theory.inputs import Cluster, Recipe, hardware, models
from course_lib.theory.step.give_way import sharded_backward
from course_lib.theory.step.streams import Task, shared_timeline

# %% [markdown] tags=["exercise"]
# **17.1** LLaMA-2 7B (6,738,415,616 parameters) can be trained on any of three cards, rented by the hour. The prices are examples. Put in yours afterwards.
#
# | card | dense bf16 peak | MFU | USD an hour |
# |---|---|---|---|
# | H100-SXM | 989.4 TFLOP/s | 40 % | 2.00 |
# | H200-SXM | 989.4 TFLOP/s | 42 % | 2.50 |
# | RTX4090 | 165.2 TFLOP/s | 35 % | 0.35 |
#
# By $6ND$: how many USD does a million tokens cost on each? At which price of an hour would the 4090 be as cheap as the H100? And which MFU must the H200 reach to be as cheap as the H100?

# %% tags=["exercise"]
h100_usd, h200_usd, rtx_usd, even_usd, even_mfu = ..., ..., ..., ..., ...
### BEGIN SOLUTION


def usd_per_million(peak, mfu, hour_usd):
    return hour_usd / 3600 / (mfu * peak) * 6 * 6_738_415_616 * 1e6


h100_usd = usd_per_million(989.4e12, 0.40, 2.00)
h200_usd = usd_per_million(989.4e12, 0.42, 2.50)
rtx_usd = usd_per_million(165.2e12, 0.35, 0.35)
even_usd = 2.00 * (0.35 * 165.2) / (0.40 * 989.4)
even_mfu = 0.40 * 2.50 / 2.00
### END SOLUTION
check("17.1", [h100_usd, h200_usd, rtx_usd, even_usd, even_mfu])

# %% [markdown] tags=["exercise"]
# **17.2** In training, tensor parallelism over 8 cards sends 37.6 GB for each sequence of LLaMA-2 70B. In decoding it sends 4.6 MB for a token. So the network hardly matters for decoding, somebody concludes. Write a function that
# says what one more token for each of `sequences` sequences waits for, and how long that takes. Four things take time. Each of `tp` cards
#
# - reads its part of the `weights`, in bf16, once for all sequences: `"memory"`,
# - computes 2 FLOP for each of its weights and each sequence: `"computing"`,
# - sends the bytes of two all-reduces in each layer, of `hidden` numbers in bf16 for each sequence: `"bytes"`,
# - waits for the link's latency in each of the $2(tp-1)$ steps of these all-reduces: `"latency"`.
#
# Keys and values are left out here. `hardware.accelerator(card)` has `memory_bytes_per_s`, `peak_flop_per_s`, `inside.bytes_per_s` and `inside.latency_s`. When does the conclusion fail?


# %% tags=["exercise"]
def waits_for(
    weights: int, layers: int, hidden: int, tp: int, sequences: int, card: str
) -> tuple[str, float]:
    """What takes longest ("memory", "computing", "bytes" or "latency"), and its seconds."""
    ### BEGIN SOLUTION
    gpu = hardware.accelerator(card)
    sums = 2 * layers
    message = 2 * hidden * sequences
    times = {
        "memory": 2 * weights / tp / gpu.memory_bytes_per_s,
        "computing": 2 * weights * sequences / tp / gpu.peak_flop_per_s,
        "bytes": sums * 2 * (tp - 1) / tp * message / gpu.inside.bytes_per_s,
        "latency": sums * 2 * (tp - 1) * gpu.inside.latency_s,
    }
    longest = max(times, key=times.get)
    return longest, times[longest]
    ### END SOLUTION


check("17.2", waits_for)

# %% [markdown] tags=["exercise"]
# **17.3** (published mistakes, note 004) A friend has read the plan for LLaMA-2 70B, and makes one for LLaMA-2 13B in the same way: 512 RTX 4090, one of the 40 layers on each card, micro-batches of 8 sequences of 4096 tokens, 40 of them in an update, under 1F1B. Eight lines
# of it: true or false?

# %% tags=["exercise"]
lines = {
    "32 of the 512 cards have nothing to do": ...,
    "with 40 micro-batches, one for each stage, no card ever waits": ...,
    "an update takes more than three times LLaMA-2's 4.2 million tokens": ...,
    "208 GB of states are fewer than 9 · 24 GB, so 9 cards can train it": ...,
    "the first stage keeps 40 times the activations of the whole model": ...,
    "full recomputation makes 820 layers out of 40": ...,
    "40 micro-batches between two exchanges make these a 40 times smaller part of the time": ...,
    "on H200 instead of H100, tensor parallelism reaches further: the memory is faster": ...,
}
### BEGIN SOLUTION
answers = [True, False, True, False, False, False, True, False]
lines = dict(zip(lines, answers, strict=True))
### END SOLUTION
check("17.3", lines)

# %% [markdown] tags=["exercise"]
# ### Four audits
#
# Each of the next four exercises is a verdict on a published claim. You give four things: a number that you have found, the verdict, what the difference (or the agreement) comes from, and a source that supports your number. The verdicts are
#
# - `"holds"`: your number agrees with the claim,
# - `"does not hold"`: it contradicts the claim in the very case the claim speaks of,
# - `"holds only if"`: the claim is right where it was measured; your number is from another case, in which it isn't.
#
# What passes is kept as a sentence with your records, and the report at the end of the chapter prints it.

# %% [markdown] tags=["exercise"]
# **17.4** (published mistake, note 004) "With the gradients of 80 micro-batches added up first, a training step takes 48 s", on 2,048 RTX 4090, LLaMA-2 70B (68,976,648,192 parameters) and 16,384 sequences of 4,096 tokens. Suppose that it does. How many TFLOP/s, by $6ND$, would each of the 2,048 cards have to do if none of
# them ever waited? Compare that with what a 4090 can do in training. And what makes the 48 s so short, even if no card ever waits?
#
# - `because`: `"the peak"`, `"the bubble"`, `"the exchange of gradients"`, `"48 idle cards"` or `"a layer rounded up to 1B"`
# - `source`: `"NVIDIA's Ada whitepaper, appendix A"`, `"note 004"`, `"arXiv:2307.09288"` (LLaMA-2) or `"arXiv:2104.04473"` (Megatron-LM's pipelines)

# %% tags=["exercise"]
audit_a = {"found": ..., "verdict": ..., "because": ..., "source": ...}
### BEGIN SOLUTION
audit_a = {
    "found": 6 * 68_976_648_192 * 16_384 * 4096 / (48 * 2048) / 1e12,
    "verdict": "does not hold",
    "because": "the peak",
    "source": "NVIDIA's Ada whitepaper, appendix A",
}
### END SOLUTION
check("17.4", audit_a)

# %% [markdown] tags=["exercise"]
# **17.5** (published claim, note 002) FSDP allows a larger batch: on two cards of 24 GB, GPT-2 Large trains with 15 samples on each card in place of DDP's 7. "FSDP doubles the batch", people conclude. What does it do for GPT-2 124M (124,439,808 parameters), on the same two cards and with samples of the same 128 tokens? Everything is fp32 with AdamW. A card
# has 23.65 GiB, and CUDA takes 1 GiB of it. DDP keeps 16 bytes for each parameter, and 4 more for the copies of gradients in its buckets. FULL_SHARD on two cards keeps half of the 16; leave out the layer that it gathers. `found` is the factor: the batch under FULL_SHARD over that under DDP, without rounding to whole samples.
#
# - `because`: `"the states' share of the card"`, `"sequences of 128 tokens"`, `"two cards instead of more"`, `"fp32 instead of bf16"` or `"the network"`
# - `source`: `"github.com/huggingface/blog, pytorch-fsdp.md"`, `"note 002"`, `"arXiv:2304.11277"` (FSDP) or `"arXiv:1910.02054"` (ZeRO)

# %% tags=["exercise"]
audit_b = {"found": ..., "verdict": ..., "because": ..., "source": ...}
### BEGIN SOLUTION
room = (23.65 - 1) * 2**30
audit_b = {
    "found": (room - 8 * 124_439_808) / (room - 20 * 124_439_808),
    "verdict": "holds only if",
    "because": "the states' share of the card",
    "source": "github.com/huggingface/blog, pytorch-fsdp.md",
}
### END SOLUTION
check("17.5", audit_b)

# %% [markdown] tags=["exercise"]
# **17.6** (published claim, note 001) Before each reduce-scatter FSDP prepares the gradients by small kernels in the stream of the messages. These "run in parallel to the computing and slow the communication severely", so that gaps appear in the computing as well. But they are so small! Take a long backward pass: a layer computes 10 ms, its gradients are prepared in 1 ms, the reduce-scatter takes
# 6 ms and the next gather 3 ms, each alone. Computing and preparing both want the whole processor, with weights 9 and 1. Gathers and reduce-scatters use only the network and stand in one stream with the preparing. Somewhere in the middle of the pass: how many ms lie between the ends of two layers' computing? First by hand, then with
# `sharded_backward` and `shared_timeline`. Then look for the cause: which change ends the waiting, and still leaves every part as long as it is alone?
#
# - `because`: `"the processor they share"`, `"the network"`, `"the size of the copies"`, `"too few streams"` or `"the CPU"`
# - `source`: `"Khrushchev 2024, YaFSDP (Medium)"`, `"github.com/yandex/YaFSDP, README"`, `"arXiv:2304.11277"` (FSDP) or `"note 001"`

# %% tags=["exercise"]
### BEGIN GIVEN
# tasks = sharded_backward(
#     10,
#     backward=Task("backward", "computing", 10e-3, {"processor": 1.0}, weight=9),
#     gather=Task("gather", "messages", 3e-3, {"network": 1.0}),
#     scatter=Task("scatter", "messages", 6e-3, {"network": 1.0}),
#     prepare=Task("prepare", "messages", 1e-3, {"processor": 1.0}),
# )
# print(shared_timeline(tasks).explain())
### END GIVEN
audit_c = {"found": ..., "verdict": ..., "because": ..., "source": ...}
### BEGIN SOLUTION
tasks = sharded_backward(
    10,
    backward=Task("backward", "computing", 10e-3, {"processor": 1.0}, weight=9),
    gather=Task("gather", "messages", 3e-3, {"network": 1.0}),
    scatter=Task("scatter", "messages", 6e-3, {"network": 1.0}),
    prepare=Task("prepare", "messages", 1e-3, {"processor": 1.0}),
)
run = shared_timeline(tasks)
audit_c = {
    # 1 ms at a tenth of its speed, and 6 + 3 ms of messages: more than 10 + 1 ms
    "found": 1000 * (run.end_s("backward 5") - run.end_s("backward 6")),
    "verdict": "holds",
    "because": "the processor they share",
    "source": "Khrushchev 2024, YaFSDP (Medium)",
}
### END SOLUTION
check("17.6", audit_c)

# %% [markdown] tags=["exercise"]
# **17.7** (published claim) The news on an award for BLOOM says that its training "achieved sustained performance of 156 TFLOP/s" on each A100, 50 % of the peak (genci.fr). BLOOM has 176.247 billion parameters, was trained on 366 billion tokens, and took 1,082,990 GPU-hours. Activations were recomputed in full, and the 156 count what was computed twice. How
# many TFLOP/s, counted in the same way, was the mean of the whole training?
#
# - `because`: `"hours below the best speed"`, `"recomputation"`, `"sparse matrices"`, `"attention's scores"` or `"four spare nodes"`
# - `source`: `"arXiv:2211.05100"` (BLOOM), `"github.com/bigscience-workshop/bigscience, tr11-176B-ml"`, `"genci.fr, news on BLOOM's award"` or `"arXiv:2001.08361"` (scaling laws)

# %% tags=["exercise"]
audit_d = {"found": ..., "verdict": ..., "because": ..., "source": ...}
### BEGIN SOLUTION
audit_d = {
    "found": 8 * 176.247e9 * 366e9 / (1_082_990 * 3600) / 1e12,
    "verdict": "does not hold",
    "because": "hours below the best speed",
    "source": "arXiv:2211.05100",
}
### END SOLUTION
check("17.7", audit_d)

# %% [markdown] tags=["exercise"]
# **17.8** (published claims, note 001) "Training time falls by up to 26 %", "25 % faster", "saves 150 GPUs". Take the row of LLaMA-2 70B from section 9.6, 256 GPUs and 2048 tokens: a step takes 8.87 s with FSDP and 6.97 s with YaFSDP. A training takes 60 days with FSDP. Give the days with YaFSDP; the factor by which
# more tokens are trained in the same 60 days; and the GPUs (a broken number is fine) with which YaFSDP needs 60 days again, if it scales linearly. Now to the 150 GPUs: out of how many are they saved, at this row's saving? And at that of the table's weakest row, 2.32 %?

# %% tags=["exercise"]
days, more_tokens, gpus, saved_of, saved_of_weakest = ..., ..., ..., ..., ...
### BEGIN SOLUTION
days = 60 * 6.97 / 8.87
more_tokens = 8.87 / 6.97
gpus = 256 * 6.97 / 8.87
saved_of = 150 / (1 - 6.97 / 8.87)
saved_of_weakest = 150 / 0.0232
### END SOLUTION
check("17.8", [days, more_tokens, gpus, saved_of, saved_of_weakest])

# %% [markdown] tags=["exercise"]
# **17.9** Three trainings move from H100 to H200, nodes of 8: the same peak, the same NVLink, 141 GB in place of 80. What does the planner buy with the memory: `"no recomputation"`, `"fewer cuts"` (a smaller $tp \cdot pp \cdot cp$) or `"larger micro-batches"`? Take the first of these that applies. And if an hour of an H200 costs a quarter more than
# one of an H100, for which of the three is it cheaper per token? Write down your guess first. Then ask the planner for the fastest layout on either card.

# %% tags=["exercise"]
### BEGIN GIVEN
# card = hardware.accelerator("H200-SXM")
# shape = models.MODELS["llama3-70b"]
# plan = planner.plan(shape, Recipe(), Cluster(card, nodes=2), 256, sequence=8192)
# print(plan.best(1)[0].explain())
### END GIVEN
bought = {
    "llama3-70b, 16 GPUs, 256 × 8192 tokens": ...,
    "gpt3-175b, 64 GPUs, 512 × 2048 tokens": ...,
    "llama3-8b, 16 GPUs, 128 × 8192 tokens": ...,
}
cheaper = {
    "llama3-70b, 16 GPUs, 256 × 8192 tokens": ...,
    "gpt3-175b, 64 GPUs, 512 × 2048 tokens": ...,
    "llama3-8b, 16 GPUs, 128 × 8192 tokens": ...,
}
### BEGIN SOLUTION
for model, nodes, batch, sequence in (
    ("llama3-70b", 2, 256, 8192),
    ("gpt3-175b", 8, 512, 2048),
    ("llama3-8b", 2, 128, 8192),
):
    for name in ("H100-SXM", "H200-SXM"):
        where = Cluster(hardware.accelerator(name), nodes)
        shape = models.MODELS[model]
        plan = planner.plan(shape, Recipe(), where, batch, sequence=sequence)
        print(model, name, plan.best(1)[0].explain())
words = ["no recomputation", "fewer cuts", "larger micro-batches"]
bought = dict(zip(bought, words, strict=True))
# steps 1.35, 1.16 and 1.04 times as fast, for 1.25 times the price
cheaper = dict(zip(cheaper, [True, False, False], strict=True))
### END SOLUTION
check("17.9", [bought, cheaper])

# %% [markdown] tags=["exercise"]
# **17.10** Before you build a layout, say what it will send. Eight ranks, $dp = tp = pp = 2$, train a GPT of 4 layers with hidden size 64 and an alphabet of 128 characters, on 8 sequences of 16 characters in an update; each replica runs its 4 sequences in two pieces. Everything is fp32. How many bytes does rank 0, on the first stage, hand to tp's all-reduces, to the next
# stage, and to dp's all-reduces? It stores 55,488 parameters. Then say for each change which axis hands over at least twice the bytes: `"tp"`, `"dp"`, `"both"` or `"neither"`. When you have answered, build it: `course demo three_d --ranks 8 --model 4x64x4`.

# %% tags=["exercise"]
tp_bytes, pp_bytes, dp_bytes = ..., ..., ...
doubles = {
    "16 sequences in an update, in 4 pieces": ...,
    "hidden 128 instead of 64": ...,
    "4 pieces of one sequence instead of 2 of two": ...,
    "4 replicas instead of 2, the same 8 sequences": ...,
}
### BEGIN SOLUTION
message = 2 * 16 * 64 * 4  # sequences of a piece · characters · hidden · bytes
tp_bytes = (4 * 2 + 1) * 2 * message  # 2 layers and the embedding, 2 pieces
pp_bytes = 2 * message
dp_bytes = 4 * 55_488
doubles = dict(zip(doubles, ["tp", "both", "neither", "neither"], strict=True))
### END SOLUTION
check("17.10", [tp_bytes, pp_bytes, dp_bytes, doubles])

# %% [markdown] tags=["exercise"]
# **17.11** Write the timeline of section 17.4. `rates` says how fast tasks run while all of them run; `shared_timeline` says what runs when. A `Task` has a name, a stream, the seconds that it takes alone (`alone_s`), `demands` (the part of each resource that it uses at full speed), a `weight`, and `after`: names of tasks that must have ended. All rates grow
# together, each in proportion to its task's weight, until the task runs at full speed, which is 1, or something that it uses is used up. Those that are not stopped go on growing.
#
# In a timeline each stream runs its tasks in the order in which they are given. While no task ends, no rate changes: each running task gets a `Span` for that time. `SharedTimeline(tasks, spans, ideal_s)` holds the result; `ideal_s` is the end if every task always ran at full speed. Tasks that wait for each other raise a `ValueError`. The check runs your functions on examples by
# hand and on random tasks, and counts the work of every span. What passes is kept as `mine/shared_rate.py`. Then run exercise 17.6 on it: `mine.shared_timeline(tasks).explain()`.

# %% tags=["exercise"]
from collections.abc import Sequence

from course_lib.theory.step.streams import SharedTimeline, Span, Task

### BEGIN GIVEN


def rates(tasks: Sequence[Task]) -> list[float]:
    """How fast each task runs while all of them run: 1 is its speed alone."""
    ...


def shared_timeline(tasks: Sequence[Task]) -> SharedTimeline:
    """Run the tasks, each stream in the order given, at the speeds of `rates`.

    A span is Span(task.name, task.stream, start_s, end_s, rate). ValueError for
    tasks that wait for each other.
    """
    ...


### END GIVEN
### BEGIN SOLUTION
from course_lib.theory.step.streams import rates, shared_timeline

### END SOLUTION

check("17.11", [rates, shared_timeline])

# %% [markdown] tags=["exercise"]
# **17.12** Write the audit that you would run on the next claim you read. From parameters, tokens, GPU-hours and the card's dense peak it computes the model FLOP per second of one GPU by $6ND$, the utilisation, and a verdict: `"impossible"` if the utilisation is above `most`, `"poor"` if it is below `least`, else `"plausible"`. No training is faster than the best single
# matrix product, which reaches 0.87 of an A100's peak. The 0.2 is a convention. A claim without a source, or with a quantity that is 0 or less, is not judged: raise a `ValueError`. The check runs it on BLOOM, LLaMA, Llama 3.1 and DeepSeek-V3, and on claims that cannot be true. What passes is kept as `mine/claims.py`. From then on `from course_lib import mine; mine.audit_run(…)` judges any claim that you meet.

# %% tags=["exercise"]
from course_lib.theory.audits.judged_run import JudgedRun

### BEGIN GIVEN


def audit_run(
    parameters: float,
    tokens: float,
    gpu_hours: float,
    peak_flop_per_s: float,
    source: str,
    *,
    most: float = 0.87,
    least: float = 0.20,
) -> JudgedRun:
    """JudgedRun(flop_per_s, utilisation, verdict, source) of a training run."""
    ...


### END GIVEN
### BEGIN SOLUTION
from course_lib.theory.audits.judged_run import audit_run

### END SOLUTION

check("17.12", audit_run)
