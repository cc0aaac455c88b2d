# %% [markdown]
# # 17 Capstone
#
# In 2022 more than a thousand researchers trained BLOOM, a model with 176 billion parameters, on 366 billion tokens. A public computer near Paris gave them 384 A100,
# and the training took 1,082,990 GPU-hours (arXiv:2211.05100, table 3 and section 3.4.1). The report says that the hardware ran at half of its peak. Was that good? And is it true?
#
# By now you can answer both. This chapter brings no new technique. It brings a habit: to ask of every number how its authors got it, and whether you get the same.
#
# By the end of this chapter you can
#
# - say for each family of parallelism what it moves, and whether the network must understand it,
# - audit a published claim: recompute it on its own terms, then on the right ones, and let the numbers give the verdict,
# - say what a stream loses when it shares a processor with another, and recognise the give-way effect in a profile,
# - compute what a million tokens cost on a card, trained or generated, and which part of the card you pay for,
# - plan the training of a 70B model, defend the plan, and test it on eight small ranks,
# - say in which direction your own intuition errs.
#
# Time: two sittings without the exercises, sections 17.1 to 17.4 in about an hour, and 17.5 to 17.9 in about 75 minutes, with as much again as you like for your plan and report. The exercises take about two and a half hours. You need chapters 5, 9, 11 and 13.

# %%
from dataclasses import replace

from course_lib import (
    demos,
    emitting,
    expect,
    launch,
    measure,
    predict,
    recorded,
    show_source,
    style,
)
from course_lib.chapters.ch17_capstone import (
    claimed,
    figures,
    reporting,
    sharing,
    streams,
)
from course_lib.chapters.ch17_capstone.claimed import Weak, fsdp_scaling
from course_lib.chapters.ch17_capstone.costs import (
    PRICES,
    Decoding,
    TokenCost,
    most_sequences,
    sharded_backward,
)
from course_lib.scratch import opaque
from course_lib.theory import (
    CAUTIOUS,
    VERDICTS,
    Assumptions,
    Claim,
    Cluster,
    Job,
    Layout,
    Recipe,
    TransformerShape,
    budget,
    collectives,
    flops,
    gpt2_128,
    gpu_memory,
    hardware,
    models,
    planner,
    units,
)
from course_lib.theory.network import step_traffic

launch.warm_up()

# %% [markdown]
# **Predict.** Over its whole training, what percentage of the A100's peak of 312 TFLOP/s did BLOOM use? Section 17.5 has the answer.

# %%
bloom_share = predict("17.bloom", "Percent of the peak?", yours=None, unit="%")

# %% [markdown]
# ## 17.1 Four families, one model
#
# Note 003 lists four families of parallelism: data, pipeline, tensor, and mixture of experts. Here they are on one model with three layers:

# %%
figures.families()

# %% [markdown]
# - Data parallelism keeps the whole model on each GPU and cuts the batch. (FSDP belongs here: its replicas store the model in pieces.)
# - Pipeline parallelism gives each GPU whole layers.
# - Tensor parallelism cuts through each layer.
# - With a mixture of experts, every GPU holds attention (the flat strips) and its own experts. (The fourth family is *expert* parallelism. A mixture of experts is a kind of model, section 12.4.)
#
# The note quotes a comforting thought. Once the structure of the computation is fixed, you only move **opaque bits** (不透明的位) from A to B, like a network switch that forwards packets and knows nothing of what is in them.
#
# That can be tested. `scratch.opaque` makes the typical move of each family, once with tensors as they are, and once with the same memory declared as bytes:

# %%
show_source(opaque.opaque, opaque.tensor, opaque.pipeline)

# %% [markdown]
# **Predict.** Three ranks make the four moves as bytes. For how many of the four families is the result still that of one process?

# %%
survivors = predict("17.opaque", "Families that are still right?", yours=None)


# %%
def both_ways():
    """By family: right with types, right as bytes, bytes that were sent."""
    found = {}
    for family in opaque.FAMILIES:
        with measure.wire.log_wire() as log:
            typed = opaque.is_right(family, opaque.typed)
        size = sum(total.size_bytes for total in log.sent().values())
        found[family] = typed, opaque.is_right(family, opaque.opaque), size
    return found


first, *_ = ranks = launch.run(both_ways, ranks=3)
for family, (typed, as_bytes, size) in first.items():
    print(f"{family:<9} typed {typed}, as bytes {as_bytes}, {size} bytes")

# %%
assert all(typed for found in ranks for typed, _, _ in found.values())
right = [all(found[family][1] for found in ranks) for family in opaque.FAMILIES]
expect(2, sum(right), label="families", yours=survivors)

# %%
figures.families({family: size for family, (_, _, size) in first.items()})

# %% [markdown]
# **Explain.** Two. A pipeline passes activations on, and experts receive tokens and send them back: here the switch may be blind. Data and tensor parallelism need a *sum*. Whoever adds must know where a number ends and that it is fp32. Added byte by byte, without carrying to the next byte, the result is noise, and no error is raised.
#
# So the thought is half right, and the wrong half is useful:
#
# - What is only passed on can travel over any wire, be compressed without loss, or wait in a buffer.
# - What is added depends on the number format, and its last digits on the order of the ranks (chapter 6). A switch that adds on the way, such as NVLink SHARP, has to be told the type.
#
# FSDP does one of each: its all-gather is blind, its reduce-scatter adds.
#
# One more difference does not show on three ranks. With twice as many samples, pipeline, tensor and expert parallelism move twice as much, because they move *tokens*. Gradients stay as large as the weights. That is why data parallelism gets the slow wire (chapter 13).
#
# **Remember**
# - Four cuts: the batch, the stack, each matrix, the set of experts.
# - Two families pass bits on, two add numbers. Only those that pass bits on are opaque to the network.
# - Tokens grow with the batch, gradients don't.

# %% [markdown]
# ## 17.2 Audit A: a plan for 2048 cards
#
# An **audit** (审计) of a claim needs three numbers:
#
# - what is *said*,
# - what you get *on its own terms*: with the source's own assumptions, whatever you think of them,
# - what you *find* on the right terms.
#
# The verdict follows from these three, so nobody has to write it down:
#
# | what is said agrees with its own terms | and with what you find | verdict |
# |---|---|---|
# | yes | yes | right |
# | yes | no | right on its own terms |
# | no, or not told | yes | right number, other terms |
# | no, or not told | no | wrong |
#
# Take the first sentence about memory in note 004, "80 stages keep 160 times the activations":

# %%
said = Claim(
    "80 stages keep 160 times the activations",
    said=160,
    own_terms=2 * 80,
    found=claimed.held(80),
    because="1F1B keeps p micro-batches of L/p layers",
)
print(said.explain())
assert said.verdict == VERDICTS[True, False]

# %%
show_source(Claim.verdict.fget)

# %% [markdown]
# "On its own terms" is the line that most reviewers skip. It separates mistakes in the arithmetic from mistakes in the assumptions. You correct them in different ways, and you tell the author different things.
#
# Chapter 13 went through this plan line by line. Read it again as a list of eleven claims. Nine of them say how they were computed.
#
# **Predict.** In how many of the nine is the arithmetic wrong?

# %%
slips = predict("17.slips", "Wrong sums among nine?", yours=None)

# %%
plan_audit = claimed.plan_2048()
told = [claim for claim in plan_audit.claims if claim.own_terms is not None]
wrong_sums = [claim for claim in told if not claim.verdict.startswith("right")]
expect(0, len(wrong_sums), label="wrong sums", yours=slips)

# %%
figures.audited(plan_audit, "Note 004: a plan for 2048 cards")

# %% [markdown]
# **Explain.** None. Each claim has its own line, with what is said in the middle. Where the hollow square sits there too, the arithmetic is right. Where the blue one does as well, the claim is right.
#
# All nine sums are correct, and six of the nine still mislead, by factors from 1.7 to more than 200. The notes multiply well. What they assume is wrong: the schedule, the peak, and who exchanges gradients with whom. Three lines deserve a closer look.
#
# **"Still 16 times, with 8 groups of 10 layers."** These are groups of layers for *recomputing*; there are 80 stages as before. If one layer in ten is kept, the 160 become 16: the sum is right. But the 160 were never there. 80 stages of one layer hold 80 micro-batches of that layer, which is once the model,
# and so it is with any number of stages:

# %%
for stages in (8, 80):
    print(stages, "stages:", claimed.held(stages), "times the model")
    assert claimed.held(stages) == 1
grouped = next(claim for claim in plan_audit.claims if "8 groups" in claim.words)
print(f"recomputed: {grouped.found:.2f} times the model")
assert grouped.own_terms == 160 / 10 and grouped.found < 0.1

# %% [markdown]
# With recomputation it is far less than once. A stage that has one layer can only compute that layer again. It keeps the layer's input for each of 80 micro-batches, 2 bytes of 34 for each number, and has one whole layer at a time: 0.07 times the model. (The note calls the groups "selective recomputation", but it describes checkpointing by groups, section 4.3, which keeps the inputs of
# the groups and computes each layer once more. Selective recomputation repeats only attention's scores.)
#
# **"80 micro-batches fill 80 stages."** With $m = p$ nearly half of all slots are bubble: $\frac{p-1}{m+p-1} = \frac{79}{159}$. The note says that "the batch must equal the number of layers". That is far too few.
#
# **"Such a batch is fairly large."** In sequences it looks harmless. In tokens it is 67 million, 16 times LLaMA-2's own 4 million.
#
# Two more claims of note 004 come without a number, so give them one. First: *the more stages, the more data in all, and the more latency.* Every micro-batch crosses each boundary between two stages twice, with $b \cdot s \cdot h$ numbers:

# %%
crossing = collectives.activation_bytes(8, 4096, 8192)
crossed = {}
for stages in (10, 80):
    crossed[f"{stages} stages, in all"] = 2 * (stages - 1) * crossing
    crossed[f"{stages} stages, one of them"] = 2 * crossing
told = {name: units.format_bytes(size) for name, size in crossed.items()}
figures.bars(crossed, told, "What the stages send for one micro-batch")

# %% [markdown]
# True, but harmless. The total grows nearly ninefold, and a micro-batch makes 158 hops instead of 18 on its way through. But each *link* carries 1.07 GB for a micro-batch, whatever the number of stages, and the other micro-batches fill the time of the hops. What grows with the stages and does hurt is the bubble.
#
# Second, on the H200: *faster memory raises the ratio of computing to communication.*

# %%
h100, h200 = (hardware.accelerator(name) for name in ("H100-SXM", "H200-SXM"))
faster_memory = claimed.compared(h100, h200)
print(faster_memory.explain())
assert faster_memory.verdict == VERDICTS[True, False] and faster_memory.found == 1

# %% [markdown]
# The ratio that limits tensor parallelism is FLOP per byte *of the link*, and both cards have the same peak and the same NVLink. What changes is the memory's ridge (section 5.4), from 295 to 206 FLOP per byte. That helps where a GPU waits for its own memory. Section 17.6 shows where it does.
#
# **Remember**
# - Said, on its own terms, found: the verdict follows from three numbers.
# - Right sums on wrong assumptions are the most common mistake, and the hardest to see.
# - A claim without a number can't be judged. Give it one first.

# %% [markdown]
# ## 17.3 Audit B: GPT-2 at 128 tokens
#
# Note 002 quotes the experiment that section 9.7 took apart: GPT-2 on two cards of 24 GB. FSDP trains with 15 samples where DDP manages 7, and it trains the XL model, where DDP fails. The command in the article says `--block_size 12`.
#
# **Predict.** The article gives six results: four batches of Large, XL's failure under DDP, and XL's batch under FULL_SHARD. How many of the six does the theory confirm *on the article's own terms*, with 12 tokens in a sample?

# %%
confirmed = predict("17.gpt2", "Of six results?", yours=None)

# %%
gpt2_audit = gpt2_128.gpt2_128()
results = gpt2_audit.claims[1:]
on_own_terms = sum(
    abs(claim.own_terms - claim.said) <= claim.within * claim.said for claim in results
)
expect(1, on_own_terms, label="confirmed", yours=confirmed)

# %%
figures.audited(gpt2_audit, "GPT-2 on two cards of 24 GB")

# %% [markdown]
# **Explain.** One, the failure of XL. With 12 tokens, 197 samples would have fit where the table says 7. With 128 tokens, as in a later version of the file, and with everything that the program keeps, the numbers come out within 20 %, but for one (15 samples where the table says 11). That is the third verdict, *right number, other terms*: the measurement is sound and its description is not. Whoever repeats the printed command gets
# something else, and doubts the wrong thing.
#
# The first line is of another kind. "762 million" is the paper's number for Large; the model that was published has 774 million. The gap of 1.6 % does not matter for a batch. It does matter if you compare parameter counts to check a download.
#
# And the claim that people remember, **"DDP can't train XL, FSDP can"**, is right. But it is a statement about a *card*. On which cards does it stop being true?
#
# **Predict.** XL has 24.9 GB of states in fp32, and DDP adds its buckets. On a card with 40 GB ($40 \cdot 10^9$ bytes), how many samples of 128 tokens does DDP train?

# %%
under_ddp = predict("17.xl", "Samples under DDP on 40 GB?", yours=None)

# %%
xl = models.MODELS["gpt2-1.5b"]
tables = {
    size_gb: gpt2_128.Program(xl, card_bytes=size_gb * 1e9).table()
    for size_gb in (25.4, 28, 32, 36, 40, 48, 64, 80)
}
on_40 = gpt2_128.Program(xl, card_bytes=40e9).largest_batch("DDP")
expect(on_40, label="samples", yours=under_ddp)
assert gpt2_128.Program(xl, card_bytes=32e9).largest_batch("DDP") == 0 < on_40

# %%
figures.lines(
    {way: [(size, table[way]) for size, table in tables.items()] for way in tables[40]},
    "memory of each of the two cards, GB",
    "samples of 128 tokens on a card",
    "GPT-2 XL: the largest batch by the size of the card",
    mark={"the article's": 25.4},
)

# %% [markdown]
# **Explain.** DDP needs 16 bytes per parameter and 4 more for the copies in its buckets: 31.2 GB before the first sample. At 32 GB it still fails, and from 36 GB on it trains. So behind a "cannot" stands a limit, and here it is less than one generation of cards away. The *order* of the four curves holds on every card, and that is the part of the claim to take home.
#
# **Remember**
# - Right number, other terms: trust the measurement, not its caption.
# - Behind "cannot" there is a limit. Ask how far away it is.

# %% [markdown]
# ## 17.4 Audit C: FSDP's speed, and who gives way to whom
#
# Note 001 says that FSDP keeps "comparable performance" to DDP and "near-linear scalability in terms of TFLOPS". Both come from the abstract of its paper (arXiv:2304.11277). Comparable sounds odd, since FSDP sends one and a half times as much (chapter 8).
#
# Suppose a GPT of 1.7 billion parameters on A100, with 8 in a node and 250 Gb/s of network for each, as in the paper.
#
# **Predict.** 512 of these GPUs train, each with a single sequence of 512 tokens. How many times as long as a step of DDP does a step of FSDP take?

# %%
beside_ddp = predict("17.ddp", "Step of FSDP / step of DDP?", yours=None)

# %%
small = models.MODELS["gpt-1.7b"]
ratios = {
    f"{gpus} GPUs": [
        (tokens, Weak(small, gpus, tokens).over_ddp)
        for tokens in (512, 1024, 2048, 4096)
    ]
    for gpus in (8, 64, 512)
}
expect(ratios["512 GPUs"][0][1], label="FSDP / DDP", yours=beside_ddp)

# %%
figures.lines(
    ratios,
    "tokens on each GPU",
    "step of FSDP over step of DDP",
    "FSDP beside DDP, 1.7 billion parameters on A100",
    doubling=(True, False),
    level={"DDP": 1},
)

# %% [markdown]
# **Explain.** Mostly FSDP is *faster*, because its optimizer updates only a shard. With 4096 tokens per GPU all messages hide behind the computing, on 8 GPUs as on 512. With 512 tokens a GPU computes for 36 ms, and half as many bytes again don't hide behind that. Besides, each message goes around a ring of 512, whose 511 steps take 4.9 ms even if they carry nothing. So "comparable" has a condition,
# tokens per GPU, the same one that decides DDP's own speed (section 7.4).
#
# Now the scaling. The paper measured it (its section 5.4): GPT-3 175B is as fast per GPU on 512 GPUs as on 128. T5 11B lost 7 % between 8 and 512.

# %%
fsdp_audit = fsdp_scaling(Weak(small), Weak(small, 512, 512))
assert [claim.verdict for claim in fsdp_audit.claims].count(VERDICTS[True, False]) == 3
figures.audited(fsdp_audit, "What is said of the speed of FSDP and YaFSDP")

# %% [markdown]
# Near-linear is what the theory expects. A ring's bytes hardly grow with its members, $\frac{n-1}{n}$, so a GPU with the same work stays as fast. Latency does grow with $n$. The paper suspects that T5 lost its 7 % to messages that no longer hide on a large cluster.
#
# The third line is about YaFSDP. 26.6 % less *time* is 36 % more *throughput* (section 9.8). The fourth turns GPUs into money: 150 GPUs for a month are 109,500 GPU-hours. At 2 USD that is 0.22 million, and the claim begins at 0.5. Ask which price was assumed.
#
# One more line is the most interesting: 175B on 128 GPUs, where all messages hide behind computing. If that were free, the theory would expect 212 TFLOP/s on each with one sequence. It takes a price for hiding, and expects 185:

# %%
wide = Weak(models.MODELS["gpt3-175b"], 128, 2048, 2048)
free = wide.step(3, Assumptions(message_touches=0, message_sms=0))
free_rate = free.hardware_flop / free.total_s / free.gpus / 1e12
expected = wide.flop_per_s / 1e12
assert (round(free_rate), round(expected)) == (212, 185)
assert round(replace(wide, tokens=4096).flop_per_s / 1e12) == 198
reached = {"the card's peak": 312, "theory, hiding free": free_rate, "theory": expected}
reached |= {"paper, 1 sequence": 173}
told = {name: f"{rate:.0f} TFLOP/s" for name, rate in reached.items()}
figures.bars(reached, told, "GPT-3 175B on 128 A100, one GPU", style.COMPUTING)

# %% [markdown]
# The paper has "more than 173" with one sequence, and with two 186, where the theory expects 198. Without a price it would be too fast by more than a fifth. So what do messages cost that are hidden completely?
#
# ### Hidden is not free
#
# The theory of chapter 7 lets computing and messages run side by side as if the other were not there. On a GPU both run on the *same* processor. An H100 has 132 multiprocessors (SMs), and a collective is a kernel that occupies some of them: DeepSeek-V3 reserved 20 (arXiv:2412.19437, section 3.2.2). A matrix product would like all of them.
#
# So give each task a *demand*: the fraction of each resource that it uses when it runs alone. Where the demands of the running tasks add up to more than there is, they slow down. Which of them, and by how much? The usual model is **max-min fairness** (最大最小公平): all speeds grow together until something is used up. A task with weight 2 grows twice as fast as one with weight 1.

# %%
product = streams.Task("product", "computing", 0.100, {"processor": 1.0})
message = streams.Task(
    "message", "messages", 0.050, {"processor": 20 / 132, "link": 1.0}
)
overlapped = streams.shared_timeline([product, message])
print(overlapped.explain())
assert overlapped.ideal_s < overlapped.total_s < overlapped.serial_s

# %% [markdown]
# 100 ms of computing hide 50 ms of messages, and *both* get longer: 107.6 ms instead of 100. Overlap still pays, since one after the other would be 150. But nothing that overlaps is free:

# %%
figures.shared_rates({"both at once": overlapped})

# %% [markdown]
# A box as high as its row runs at full speed. Its area is the work, which sharing does not change. In reality a collective keeps its SMs, so it hardly slows down and the product loses 15 % alone. In the model, that is a larger weight.
#
# The theory of a step keeps this in one line, `theory.step.stage`: a hidden second of messages takes 20/132 of a second from computing or, if that is more, the time in which its bytes pass the memory four times (section 13.4). On NVLink the memory is scarcer: that made 212 into 185. For one network port of 50 GB/s the SMs are.
#
# ### The same on your computer
#
# This model is not special to GPUs. Any scheduler that shares by weight obeys it, and your computer has one. Linux gives a process the weight 1024, but only 110 if it was started with `nice -n 10`, which means: let others go first.
#
# **Predict.** Two processes share one core. The polite one, nice 10, needs 50 ms of the core; the other needs 600 ms. How many times as long as alone does the polite one take?

# %%
politeness = predict("17.polite", "Times as long as alone?", yours=None)

# %%
import json

rude = streams.Task("rude", "a", 0.6, {"core": 1.0}, weight=1024 / 1024)
polite = streams.Task("polite", "b", 0.05, {"core": 1.0}, weight=110 / 1024)
on_one_core = streams.shared_timeline([rude, polite])
if sharing.can_share():  # binding to a core needs Linux
    slower = sharing.slowdowns([0.6, 0.05], nice=[0, 10])
else:
    slower = json.loads(recorded("sharing").splitlines()[-1])
print(f"slowdown of the other one: {slower[0]:.3f}")

# %%
slowdown = on_one_core.slowdown("polite")
expect(slowdown, slower[1], within=None, label="slowdown", yours=politeness)

# %% [markdown]
# **Explain.** $1 + 1024/110 = 10.3$. While both run, the polite process gets $110/1134$ of the core. The other one hardly notices: its 600 ms become 650. (The clock of this measurement counts only the time that the core gave to one of the two, so other programs on your computer do not disturb it.)
#
# Keep that asymmetry in mind. *A short task with a small weight waits for a long one as if it were long itself.*
#
# ### The give-way effect
#
# The authors of YaFSDP saw this in their profiles and called it the give-way effect (Khrushchev, *YaFSDP*, Medium, June 2024; note 001 quotes it). Before each reduce-scatter, FSDP1 copies the gradients into one buffer and divides them. That takes a few milliseconds of small kernels, in the stream of the messages. They run beside the matrix products, whose thousands of blocks queue for the SMs, and get few of them.
#
# Here are the numbers for one layer of LLaMA-2 70B, with 4096 tokens on an A100, 50 GB/s of network, and everything recomputed:

# %%
layer = models.MODELS["llama2-70b"].layer_parameters(1).total
a100 = hardware.accelerator("A100-SXM-80GB")
rate = a100.peak_flop_per_s * a100.matmul_efficiency * a100.layer_efficiency
backward_s = 6 * layer * 4096 / rate  # 4 backward, 2 computed again
message_s = 2 * layer / 50e9  # a gather of bf16 weights, or a scatter
copies_s = 2 * 2 * 2 * layer / a100.memory_bytes_per_s  # copy, divide: read, write
assert 2 * message_s + copies_s < backward_s
part_seconds = {
    "computing": {"backward": backward_s},
    "messages": {
        "messages: gather": message_s,
        "copies": copies_s,
        "messages: scatter": message_s,
    },
}
figures.stacked_bars(
    part_seconds, "One layer, each part alone", lambda part_s: f"{1000 * part_s:.1f} ms"
)

# %% [markdown]
# 34 ms for the gather, 34 for the scatter and 3.4 for the copies make 72 ms, beside 96 ms of computing. Everything should hide with ease. Now give the small kernels a twentieth of the weight of a matrix product. (This weight is our assumption. Nobody publishes one, and it depends on the kernels.)

# %%
sms = 20 / 108  # of an A100; 20 as in DeepSeek-V3
backward = streams.Task("backward", "computing", backward_s, {"processor": 1.0})
travel = streams.Task(
    "message", "messages", message_s, {"processor": sms, "link": 1.0}, weight=100
)
small_kernels = streams.Task(
    "prepare", "messages", copies_s, {"processor": 1.0}, weight=1 / 20
)
without, given_way = (
    streams.shared_timeline(
        sharded_backward(8, backward, travel, travel, prepare=prepare)
    )
    for prepare in (None, small_kernels)
)
more = 100 * (given_way.total_s / without.total_s - 1)
print(f"these {1000 * copies_s:.1f} ms in each of eight layers cost {more:.0f} %")
assert round(more) == 21
assert given_way.slowdown("prepare 5") > 20

# %%
figures.shared_rates(
    {
        "copies before each scatter": given_way,
        "gradients written there at once": without,
    }
)

# %% [markdown]
# **Explain.** Follow the chain in the upper picture, from one layer to the next:
#
# 1. The copies (the low, crossed boxes) run at a twentieth of their speed: 70 ms instead of 3.4.
# 2. So the scatter starts late, and so does the gather behind it, since only two layers may be whole.
# 3. So the next backward has no weights, and the *computing* stream has a gap.
#
# The picture in note 001 shows the same. Its first row is the computing stream, the others are messages. Gaps between the messages come first, and then the same gaps in the computing. A profile shows you the gap in the row where it hurts. Its cause is in another row, and earlier.
#
# How much of the 21 % is the mechanism, and how much our assumptions? Change the copies a little:

# %%
for copies_ms in (2, 3, 4, 5):
    changed = replace(small_kernels, alone_s=copies_ms / 1000)
    run = streams.shared_timeline(
        sharded_backward(8, backward, travel, travel, prepare=changed)
    )
    print(f"{copies_ms} ms: {100 * (run.total_s / without.total_s - 1):.0f} % longer")

# %% [markdown]
# One millisecond more or less moves the result by about 14 points. YaFSDP's table shows 7 to 27 % for models like this one (section 9.8), and 21 % lies within it, but that is no confirmation: a model as sensitive as this one, with a weight that we chose, can give nearly any number. What it shows is that the mechanism suffices.
#
# Each part alone is too short to matter, and no message is slow. That made it hard to find, and it is why a faster network is no cure. YaFSDP writes gradients into the buffer in the first place, and divides once at the end.
#
# Where is the cliff? Find the weight above which the copies cost no more than their own time. Then take the copies away: what do the "message SMs" cost by themselves?

# %%
from course_lib.chapters.ch17_capstone import panels

panels.give_way()

# %% [markdown]
# The panel starts with the numbers above, in whole milliseconds except for the copies.

# %%
at = {
    part: panels.give_way(weight=1 / part).result.total_s for part in (1, 10, 20, 100)
}
assert at[10] / at[1] < 1.001
assert [round(100 * (at[part] / without.total_s - 1)) for part in (10, 20)] == [3, 21]
assert round(100 * (at[100] / without.total_s - 1)) == 42
for number, ends in ((0, "836 ms"), (20, "924 ms")):
    text = panels.give_way(multiprocessors=number).text
    assert f"without small kernels: {ends}" in text

# %% [markdown]
# **Answers.** The cliff lies near 1 / 10. From there on the copies cost about 3 %, their own time; at 1 / 20 they cost 21 %, and at 1 / 100 42 %. Until the chain of messages and copies is longer than the computing, nothing happens; beyond that, each millisecond counts in full. Without copies, 20 message SMs lengthen the pass from 836 to 924 ms.
#
# What the model leaves out: real kernels give SMs back block by block, caches are shared too, and a GPU with stream priorities lets small kernels go first. Your own GPU answers with a profile, `torch.profiler` and `course demo overlap --trace trace.json`.
#
# **Remember**
# - "Comparable" and "linear" have a condition: enough tokens per GPU.
# - Hidden messages take SMs away from what hides them. Both get longer.
# - Small kernels with a small weight wait like long ones. Look for the cause of a gap in another row, and earlier.
#
# *This is a good place to end the first sitting.*

# %% [markdown]
# ## 17.5 Audit D: BLOOM
#
# Among its references, note 002 has the title *Which hardware do you need to train a 176B parameters model?* This is that model. Back to the question of the opening. The report gives parameters, tokens and GPU-hours. Chapter 5 needs no more:

# %%
bloom = claimed.BLOOM
expect(100 * bloom.mfu, label="of the peak", unit="%", yours=bloom_share)
assert round(bloom.flop_per_s / 1e12) == 99

# %%
print(f"6ND = {bloom.flop / 1e23:.2f} · 10^23 FLOP")
print(f"{bloom.flop_per_s / 1e12:.1f} TFLOP/s on each GPU")

# %% [markdown]
# 99 TFLOP/s, 32 % of the peak. The report says 156 in the fastest configuration, "half of the peak". The public log of the training says 149 (18 March 2022: 105.22 s for an update of 2048 sequences on 384 GPUs). Three numbers for one training. Which is right?
#
# Begin with the log, because it can be recomputed to its last digit:

# %%
step = claimed.BLOOM_STEP
by_megatron = flops.megatron_flop(2048, 2048, layers=70, hidden=14336, vocab=250_880)
logged = budget.achieved_flop_per_s(by_megatron, 105.22, gpus=384) / 1e12
expect(logged, 149.02, within=1e-4, label="TFLOP/s in the log")

# %% [markdown]
# It is Megatron's formula with the factor 96, which counts the forward pass *twice*, because BLOOM recomputed all activations. So 149 and 156 are hardware FLOP, and half of the peak is HFU (section 5.5). That leaves two gaps: from HFU to MFU, and from a step to the whole training.
#
# **Predict.** If all updates had taken 105.22 s, what percentage of the GPU-hours would they have used? Failures, restarts, evaluations and smaller batches at the beginning took the rest.

# %%
kept_share = predict("17.kept", "Percent of the hours?", yours=None, unit="%")

# %%
bloom_audit = claimed.RunAudit(bloom, step)
expect(100 * bloom_audit.kept, label="hours", unit="%", yours=kept_share)
assert abs(bloom_audit.hfu * bloom_audit.useful * bloom_audit.kept - bloom.mfu) < 1e-12

# %%
figures.paid_time(bloom_audit)

# %% [markdown]
# **Explain.** 90 %, and $0.478 \cdot 0.737 \cdot 0.904 = 0.318$. All three numbers are right, and each answers another question:
#
# - The grey band is speed that the hardware did not reach during a step. Better kernels, another layout or a faster network make it thinner.
# - The yellow band is arithmetic that 6ND does not count. More memory makes it thinner, because less is recomputed.
# - The hatched column is hours without such steps. Checkpoints, restarts and spare nodes make it narrower (chapter 15).
#
# Ninety percent over almost four months is good. The team had four nodes in reserve, and one or two GPUs failed per week. Here is the MFU of other whole training runs:

# %%
runs = {
    f"{run.name}, {run.flop_per_s / 1e12:.0f} TFLOP/s": run
    for run in (bloom, *claimed.OTHERS)
}
assert max(runs.values(), key=lambda run: run.mfu).name == "LLaMA 65B"
figures.bars(
    {name: run.mfu for name, run in runs.items()},
    {name: f"{run.mfu:.1%}" for name, run in runs.items()},
    "MFU of whole training runs, and the speed of one GPU",
    style.COMPUTING,
)

# %%
figures.audited(claimed.bloom(), "What is said of BLOOM's training")

# %% [markdown]
# So, was that good? It was not the best of its time: LLaMA 65B, on the same chip, reached half as much again, with sequences of the same length and much less recomputation. It is close to Llama 3 405B, which had a much larger cluster to keep busy. For a first run of this size on a public machine it is respectable. The largest single thing to win back was recomputation: 26 % of the arithmetic was done twice or belonged to attention.
#
# The last claim is curious. The hours are 3.9 months of 384 GPUs, and the calendar agrees, 118 days (arXiv:2211.02001). The steps alone would have taken 3.5 months, which is what the report says.
#
# **Remember**
# - The MFU of a training run is a product: HFU of a step · useful part · kept hours.
# - A rate that does not say whether recomputation counts is two rates.
# - Recompute the log to its last digit. If you can't, you have not understood what it counts.

# %% [markdown]
# ## 17.6 Economics: training and generating
#
# Note 004 plans with RTX 4090. Such a card costs about a sixth of an H100 per hour, and has a sixth of its peak. So does a token cost the same? That depends on whether it is a token of *training*, or one that the model *generates*.
#
# Take LLaMA-2 70B on eight cards, cut by tensor parallelism, and compare what travels. In training, for a sequence of 4096 tokens:

# %%
llama = models.MODELS["llama2-70b"]
rtx = hardware.accelerator("RTX4090")
trained_bytes = 80 * collectives.tensor_parallel_bytes(1, 4096, 8192, tp=8)
travel_s = trained_bytes / rtx.inside.bytes_per_s
compute_s = flops.six_nd(llama.parameters().total, 4096) / 8 / rtx.peak_flop_per_s
print(f"{trained_bytes / 1e9:.1f} GB: {travel_s:.2f} s, beside {compute_s:.2f} s")
assert (round(travel_s, 2), round(compute_s, 2)) == (1.19, 1.28)

# %% [markdown]
# Each card sends 37.6 GB, which takes 1.19 s over PCIe, beside 1.28 s of computing at the peak. Nothing hides tensor parallelism's sums, so the cards wait half of the time.
#
# Generating text is called **decoding** (解码): token by token, each computed from all before it. For one new token the messages are 4096 times smaller, and only the forward pass sends them. That leaves 4.6 MB.
#
# **Predict.** So a token costs next to nothing? How many milliseconds does one token of one sequence take on the eight 4090?

# %%
token_ms = predict("17.token", "Milliseconds for a token?", yours=None, unit="ms")

# %%
one = Decoding(llama, rtx, tp=8)
expect(1000 * one.token_s, label="a token", unit="ms", yours=token_ms)
assert round(one.sent_bytes / 1e6, 1) == 4.6 and round(one.transfer_s * 1e3, 2) == 0.15
assert round(one.compute_s * 1e3, 1) == 0.1  # beside the reading, so it does not show

# %%
waits = {
    "training": {
        "computing": compute_s,
        "messages": travel_s,
        "latency": 2 * one.latency_s,
    },
    "decoding": one.waits(),
}
total_s = {name: sum(its.values()) for name, its in waits.items()}
figures.stacked_bars(
    {
        name: {part: size / total_s[name] for part, size in its.items() if size}
        for name, its in waits.items()
    },
    "What eight RTX 4090 wait for: a sequence in training, a token in decoding",
    "{:.0%}".format,
    {name: units.format_seconds(total) for name, total in total_s.items()},
)

# %% [markdown]
# **Explain.** 30 ms, and it is neither arithmetic (0.1 ms) nor bytes on the wire (0.15 ms).
#
# - *Reading the weights* takes 17 ms: each card must read its 17 GB to make one token. That is 1 FLOP per byte, where the card's ridge is at 164 (section 5.4).
# - *Latency* takes 13 ms: 160 sums, one after another, of 14 steps each. In training twice as many sums stood beside a second of computing, and nobody noticed. (For such small sums real engines use algorithms with fewer steps than a ring. The order of magnitude stays.)
#
# So FLOP and the bytes between cards limit training; memory bandwidth and latency limit decoding. The same card can be good at one and poor at the other.
#
# A batch helps, because all its sequences share one reading of the weights:

# %%
batches = {
    f"{count} at once": Decoding(llama, h100, tp=8, batch=count, context=4096)
    for count in (1, 8, 32, 128)
}
assert batches["128 at once"].token_s < 2 * batches["1 at once"].token_s
figures.stacked_bars(
    {name: many.waits() for name, many in batches.items()},
    "One more token for each sequence, on eight H100",
    units.format_seconds,
    {name: f"{many.tokens_per_s:,.0f} tokens/s" for name, many in batches.items()},
)

# %% [markdown]
# One more token for 128 sequences takes only 60 % longer than for a single one. How many can there be? Each keeps the keys and values of all its earlier tokens, the **key-value cache** (键值缓存): 320 KiB per token for this model, 1.3 GB for 4096 tokens. So the *size* of the memory matters as much as its bandwidth:

# %%
held_bytes, totals = {}, {}
for card in (h100, h200, rtx):
    each = Decoding(llama, card, tp=8, context=4096)
    fit = most_sequences(each, reserve_bytes=1e9)
    totals[card.name] = f"{fit} sequences"
    weights = llama.parameters().total * 2 / 8
    held_bytes[card.name] = {
        "weights": weights,
        "keys and values": fit * each.cache_bytes,
    }
figures.stacked_bars(
    held_bytes,
    "The memory of one of eight cards, and the sequences that fit",
    lambda size: units.format_bytes(size, digits=0),
    totals,
)

# %% [markdown]
# ### In money
#
# Prices of a GPU-hour change every month, and on one day the same card's differ by a factor of 2.5. The course has a few examples, with date and source. Put in your own:

# %%
for name in ("H100-SXM", "H200-SXM", "RTX4090"):
    print(f"{name:<9}", PRICES[name].explain())

# %% [markdown]
# **Predict.** LLaMA-2 70B generates one million tokens, with as many sequences at once as fit. How many times the 4090's price is the H200's? Write 2 if it costs twice as much, 0.5 for half.

# %%
price_ratio = predict("17.price", "H200 / 4090, for a token?", yours=None)


# %%
def cost_on(name, sequences=None):
    """Of a node of eight; None: as many sequences of 4096 tokens as fit."""
    card = hardware.accelerator(name)
    fit = most_sequences(Decoding(llama, card, tp=8, context=4096), reserve_bytes=1e9)
    decoding = Decoding(llama, card, tp=8, batch=sequences or fit, context=4096)
    return TokenCost(decoding, PRICES[name].usd)


bars = {
    name: {
        "training": cost_on(name).training_usd,
        "generating, 32": cost_on(name, 32).generating_usd,
        "generating, full": cost_on(name).generating_usd,
    }
    for name in ("H100-SXM", "H200-SXM", "RTX4090")
}
figures.token_costs(bars, "LLaMA-2 70B on eight cards")

# %%
found = [cost_on(name).generating_usd for name in ("H200-SXM", "RTX4090")]
expect(found[0] / found[1], label="H200 / 4090", yours=price_ratio)
assert bars["RTX4090"]["generating, 32"] < bars["H200-SXM"]["generating, 32"]

# %% [markdown]
# **Explain.** With 32 sequences the cheap card wins. With as many as fit, the expensive one does, and by far: 731 sequences share a reading of the weights, and 34 on the 4090. Per hour you pay for FLOP, bandwidth and capacity together. Decoding uses the last two.
#
# Training at the same MFU of 40 % costs the same on the H100 and the 4090, because price and peak go together, and a quarter more on the H200. But 40 % is an assumption, and for the 4090 a bold one. Ask the planner instead, for 32 H100 and 128 RTX 4090, and 256 sequences in an update. It can also test the notes' argument for the H200: *more memory means less accumulation*. In the chart below, the second bar of each kind is an H200 with the H100's memory:

# %%
same_memory = replace(h200, name="H200, 80 GB", memory_bytes=h100.memory_bytes)
cards = {"H100-SXM": (h100, 4), "H200, 80 GB": (same_memory, 4), "H200-SXM": (h200, 4)}
cards["RTX4090"] = (rtx, 16)
steps, layouts = {}, {}
for name, (card, nodes) in cards.items():
    cluster = Cluster(card, nodes, between=hardware.HDR if card is rtx else None)
    plan = planner.plan(llama, Recipe(), cluster, 256, sequence=4096)
    choice = plan.best(1)[0]
    steps[name], layouts[name] = plan.step(choice), choice.layout

# %%
figures.stacked_bars(
    {name: step.parts() for name, step in steps.items()},
    "One update of 256 sequences: 32 of the large cards, 128 RTX 4090",
    lambda part_s: f"{part_s:.1f} s",
    {name: f"{step.total_s:.1f} s, MFU {step.mfu:.0%}" for name, step in steps.items()},
)

# %%
for name, layout in layouts.items():
    tp, pp, cp, dp = layout.tp, layout.pp, layout.cp, layout.dp
    batches = f"{layout.accumulation} × {layout.micro_batch}"
    print(f"{name:<12} tp {tp}, pp {pp}, cp {cp}, dp {dp}, micro-batches {batches}")

# %%
usd = {
    name: budget.usd_per_million_tokens(
        steps[name].tokens_per_s, count, PRICES[name].usd
    )
    for name, count in {"H100-SXM": 32, "H200-SXM": 32, "RTX4090": 128}.items()
}
gain = steps["H100-SXM"].total_s / steps["H200-SXM"].total_s
assert 1.05 < gain < 1.15 and steps["H200, 80 GB"].total_s > steps["H200-SXM"].total_s
figures.bars(
    usd,
    {name: f"{price:.2f} USD" for name, price in usd.items()},
    "A million tokens of training, as planned",
    style.COMPUTING,
)

# %% [markdown]
# The faster memory alone gains 5 %. The larger one gains 5 % more: it needs half as many stages and no cut of sequences, so there are 8 replicas instead of 2, and each accumulates 32 micro-batches instead of 128. The notes are right that accumulation shrinks. But the gain comes from the cuts that are gone, because accumulation itself costs next to nothing (section 13.3).
#
# And the 4090s? They do train this model, on paper at a price near the others', with tp 2, no stages and ZeRO-3 over 64 replicas. The planner had to assume that a 4090 reaches as much of its peak as the data-centre cards, for which this was measured. Much is not in this number: networks, space and power for four times as many cards, four times as many failures, and drivers that may forbid what the plan takes for granted. At which price of the H100 would they break even?

# %%
per_card = {"H100-SXM": 32, "RTX4090": 128}
rates = [steps[name].tokens_per_s / count for name, count in per_card.items()]
even = budget.even_price(PRICES["RTX4090"].usd, rates[1], rates[0])
print(f"an H100 at {even:.2f} USD an hour would cost as much per token")

# %%
from course_lib.chapters.ch17_capstone import panels

panels.token_cost()

# %% [markdown]
# Three things to try: the price at which a 4090 generates as cheaply as an H100, each with a full batch; a context of 32,768 tokens; and the 405B model.
#
# **Answers.** At 0.15 USD an hour, less than half of its price above. With 32,768 tokens of context only 49 sequences fit on the H100s instead of 398, and a generated token costs seven times as much. The 405B model's weights alone are more than eight H100, A100, L40S or 4090 can hold; they fit on H200, B200 and MI300X.
#
# **Remember**
# - Training pays for FLOP and bytes between cards; decoding for memory bandwidth, latency, and room for a batch.
# - How many sequences share a reading of the weights dominates the price of a generated token.
# - More memory buys fewer cuts. Less accumulation comes along, and is worth little.
# - A price has a date. The ratio of two throughputs lasts longer.

# %% [markdown]
# ## 17.7 Plan 70B
#
# You have judged other people's plans. Now make one that others can judge: LLaMA-2 70B again, with 2 trillion tokens, 4 million of them in an update (arXiv:2307.09288,
# section 2), on 64 nodes of 8 H100. First the scale: $6ND = 6 \cdot 69 \cdot 10^9 \cdot 2 \cdot 10^{12} = 8.3 \cdot 10^{23}$ FLOP, and 512 H100 have $5.1 \cdot 10^{17}$ FLOP/s at their peak. That makes 19 days, which no layout
# reaches. The steps of the fastest one that the planner knows take 42 days, if its messages hide behind computing as well as they can.
#
# **Predict.** Suppose that only half of dp's messages hide, and none of cp's. How many days do the steps of the same layout take?

# %%
not_hidden = predict("17.days", "Days, if less hides?", yours=None, unit="days")

# %%
plans = {}
for name in ("H100-SXM", "H200-SXM"):
    where = Cluster(hardware.accelerator(name), nodes=64)
    found = planner.plan(llama, Recipe(), where, 1024, sequence=4096)
    plans[name] = {"optimistic": found, "cautious": found.under(CAUTIOUS)}
updates = 2e12 / (1024 * 4096)
days = {}
for name, both in plans.items():
    (fastest,) = planner.fastest(tuple(both.values()), 1)
    days[name] = [updates * seconds / 86_400 for seconds in fastest.steps_s]
    print(f"{name}: {fastest.option.explain()}")

# %%
expect(
    days["H100-SXM"][1], label="the fastest, cautiously", unit="days", yours=not_hidden
)
assert [round(size) for size in days["H100-SXM"]] == [42, 47]
assert [round(size) for size in days["H200-SXM"]] == [40, 46]


# %%
at_peak_s = flops.six_nd(llama.parameters().total, 2e12) / 512 / h100.peak_flop_per_s
spent_s = {"H100, all at the peak": {"computing": at_peak_s}}
for name, both in plans.items():
    (fastest,) = planner.fastest(tuple(both.values()), 1)
    for what, plan in both.items():
        parts = plan.step(fastest.option).parts()
        spent_s[f"{name[:4]}, {what}"] = {part: updates * parts[part] for part in parts}
figures.stacked_bars(
    spent_s,
    "Where the days go, the fastest layouts",
    lambda part_s: f"{part_s / 86_400:.0f} days",
)

# %% [markdown]
# **Explain.** 47 days, 11 % more than promised. The layout has ZeRO-2: it exchanges gradients with each of 16 micro-batches. Even if they hide they have a price (section 17.4), and if half of them does not hide, the step waits.
#
# On 512 H200 the fastest layout takes 40 days, or 46. That is 7 % faster at best; with 32 cards, in section 17.6, memory was scarcer and bought more. But look at the layout: no pipeline, no cut sequences, pairs of GPUs that share matrices, and 256 replicas that share their states (chapter 9). And it risks 16 % instead of 11 %: ZeRO-3 gathers all weights in each of two micro-batches.
#
# ### Days on the calendar
#
# All these are days of steps. Section 17.5 had a third factor, the hours that are kept. Failures, restarts and evaluations took a tenth of BLOOM's hours, and they will take some of yours. So a plan that promises a date divides by it:

# %%
for name, both_ways in days.items():
    dates = [size / bloom_audit.kept for size in both_ways]
    print(
        f"{name}: {dates[0]:.0f} to {dates[1]:.0f} days, if 90 % of the hours are kept"
    )
assert [round(size / bloom_audit.kept) for size in days["H100-SXM"]] == [47, 52]

# %% [markdown]
# (90 % is what BLOOM reached with 384 GPUs in 2022. The panel of section 15.8 says what failures and saves alone take from 512.)
#
# ### Under both sets of assumptions
#
# The optimistic assumptions are those of the 42 days, the cautious ones those of the 47. Nobody knows before the first run how much really hides. So rank by the *regret*: how far is this layout behind the best one, under whichever assumptions are worse for it (section 13.4)?

# %%
both = plans["H100-SXM"]
print(planner.explain_sturdy(both, 8))
first = planner.fastest(tuple(both.values()), 1)[0]
sturdiest = planner.sturdy(tuple(both.values()), 1)[0]
print(f"regret: fastest {first.regret:.1%}, sturdiest {sturdiest.regret:.1%}")
assert 0.07 < first.regret < 0.10 and sturdiest.regret < 0.01
steps_days = [updates * one / 86_400 for one in sturdiest.steps_s]
assert [round(one) for one in steps_days] == [43, 43]
assert [round(one / bloom_audit.kept) for one in steps_days] == [47, 48]

# %%
figures.ranked_layouts(
    both["optimistic"], "LLaMA-2 70B on 512 H100", careful=both["cautious"]
)

# %% [markdown]
# The steps of the sturdiest layout, the last bar, take 42.8 days at best and 43.4 at worst, 47 to 48 on the calendar: 1 % more than the fastest at best, 7 % less at worst. Its gradients are exchanged once in an update (ZeRO-1), so little depends on what hides. Before you sign it, look at its memory on each of its four stages:

# %%
sturdy_job = both["optimistic"].question.job(sturdiest.option.layout)
figures.consumer_bars(
    {f"stage {stage}": gpu_memory(sturdy_job, stage) for stage in range(4)},
    "The sturdiest layout, by stage",
    both["optimistic"].capacity_bytes,
)

# %% [markdown]
# 68.8 of 80.8 GB, beside the 5 % that the planner keeps free. The fastest layout needs all 80.8: if one library wanted 5 GB more, it would die in its first minute. And read the columns of the table. With 5 virtual stages four layers are a chunk, and each of the four stages passes messages 5 times for each micro-batch. The search does not
# mind; you would have to debug it.
#
# ### Defend it
#
# Choose a layout for the H100 cluster. Take one from the table, or one of your own, for example with memory to spare. `planner.plan(…, only={"zero_stage": (0, 1)})` searches among some of them only. It must satisfy tp · pp · cp · dp = 512 and micro_batch · accumulation · dp = 1024. `keep_plan` keeps it for your report, with what the planner and each engine say about it.

# %%
choice = None  # Layout(tp=..., pp=..., dp=..., zero_stage=..., accumulation=..., ...)
print(reporting.keep_plan(both, choice) or "")

# %% [markdown]
# Now write down why, in five sentences. A plan is defended when these five questions are answered:
#
# 1. **Does it fit?** With how many GB to spare, and what fills the fullest GPU?
# 2. **What does it rest on?** Which assumption, if wrong, costs it most?
# 3. **What nearly won?** Name the layout that you did not take, and why.
# 4. **Who runs it?** Which engine can do all of it, and with which schedule?
# 5. **How would you know?** What do you measure in the first hour, and which number would change your mind?
#
# Write them into `report/defence.md`. `course report` creates the file if it is missing (section 17.9), and nothing ever overwrites it.
#
# ### Emit it
#
# A plan that is typed into a configuration by hand is another plan. So let it be written for you. Here it is for Megatron-LM: your choice or, without one, the sturdiest layout.

# %%
layout = choice or sturdiest.option.layout
job = both["optimistic"].question.job(layout)
try:
    print(*emitting.files("megatron", job, "LLaMA-2 70B").values())
except ValueError as refusal:
    print(refusal)

# %% [markdown]
# In a terminal, `course plan llama2-70b --gpu H100-SXM --nodes 64 --batch 1024 --sequence 4096 --emit megatron --to run` writes the files for the fastest layout, and `--layout 7` for the seventh. An engine that cannot run a layout says so in one sentence.
#
# **Remember**
# - Sign the plan with the least regret under both sets of assumptions, not the one that wins under one.
# - Steps are not the calendar: divide by the share of the hours that you keep.
# - What a layout must hide is its risk: 42 days may be 47. What hides has a price in any case.
# - A defence names the assumption on which the plan rests, and the measurement that would refute it.

# %% [markdown]
# ## 17.8 Build it small
#
# You don't have 512 GPUs at hand, but you do have eight processes. What can a model with 0.2 million parameters on eight processes prove about 69 billion on 512 GPUs? More than it seems, and less than you would like:
#
# | eight small ranks prove | they say nothing about |
# |---|---|
# | who talks with whom, along each axis | how long it takes |
# | how many messages, and how many bytes | what hides behind what |
# | that training equals one process | the peak of the memory |
# | that the formulas take each degree into account | kernels, links, failures |
#
# The function `step_traffic` predicts the left column. It does not know whether a model is small. By that function, rank 0 sends this in one update of the 70B model:

# %%
tiny = TransformerShape(layers=4, hidden=64, heads=4, ffn=256, vocab=128, context=32)
fp32 = Recipe(parameters="fp32", gradients="fp32", master_copy=False)
cube = Layout(dp=2, tp=2, pp=2, micro_batch=1, accumulation=4)
small = Job(tiny, fp32, cube, sequence=32)
handed = step_traffic.step_traffic(job, 0).bytes_by_axis
handed = {f"70B, {axis}": size for axis, size in handed.items() if size}
told = {name: units.format_bytes(size) for name, size in handed.items()}
figures.bars(handed, told, "What rank 0 sends in one update")

# %% [markdown]
# If you took the sturdiest layout, look at the longest bar: tp's 108 GB stay inside a node, and every layer waits for them. dp sends 34 GB over the network, once in an update. The fastest layout sends several times as much, because ZeRO-2 exchanges gradients with every one of 16 micro-batches (chapter 8), and rests on the assumption that they hide. A defence has to say so.
#
# The small model can be counted. Its command is an emitted file as well, with the course's own program behind torchrun:

# %%
from course_lib.emitting import course

print("torchrun --standalone --nproc-per-node=8", *course.program(small))

# %% [markdown]
# **Predict.** A layer has about $12h^2$ weights, and tp halves them. Rank 0 has two of the four layers, half of the embedding table (128 words), and the 32 positions, which are not cut. Everything is fp32. How many bytes does rank 0 send over dp in one update?

# %%
dp_bytes = predict("17.dp_bytes", "dp bytes of rank 0?", yours=None, unit="B")

# %% [markdown]
# **Predict.** And the time: eight processes train the same model on the same batch as one process. How many times as long does an update take on eight?

# %%
longer = predict("17.time", "Update on 8 ranks / on 1?", yours=None)

# %%
settings = {"model": "4x64x4", "sequence": 32, "batch": 8, "steps": 6}
eight = demos.run(
    "three_d", ranks=8, parts="mine", micro_batches=4, stream=False, **settings
)

# %%
(version,) = eight.versions
by_dp = sum(
    total.size_bytes for axis, total in version.sent.items() if axis[:2] == "dp"
)
expect(
    step_traffic.step_traffic(small, 0).bytes_by_axis["dp"],
    by_dp,
    label="dp bytes of rank 0",
    yours=dp_bytes,
)
assert version.sent == version.predicted_sent
assert version.stored == version.predicted_stored

# %%
print(eight.report())
kept = reporting.keep_run(eight)
assert kept.bytes_equal and kept.equal
figures.rank_mesh(eight.places, version.sent)

# %%
for what, total in version.sent.items():
    axis = f"small, {what.split()[0]}"
    handed[axis] = handed.get(axis, 0) + total.size_bytes
title = "70B by theory, the small model counted"
figures.bars(handed, units.format_bytes, title, tens=True)

# %% [markdown]
# **Explain.** The same axes, and far fewer bytes. Every row of the report is exact, axis by axis, and the gradient equals that of one process up to the rounding of fp32. With your own parts, this is *your* library: rank 0's messages came out of your mesh, your pair of cut matrices, your pipeline and your ring. `keep_run` keeps all of it for the report. (dp: two layers of $12h^2/2$ weights, the table and the positions are 55,296 numbers of 4 B; biases and norms add 2 %.)
#
# Now the time. At best, eight ranks share the work among the cores:

# %%
import os

alone = demos.run("three_d", ranks=1, stream=False, **settings).versions[0]
ideal = 1 / min(8, os.cpu_count())
ratio = version.seconds / alone.seconds
# of times: the gap is shown, not judged
expect(ideal, ratio, within=None, label="update, 8 ranks / 1", yours=longer)

# %%
times = {
    "one process": alone.seconds,
    "8 ranks, if only shared": alone.seconds * ideal,
    "8 ranks, measured": version.seconds,
}
told = {name: units.format_duration(time_s) for name, time_s in times.items()}
figures.bars(times, told, "One update", style.COMPUTING)

# %% [markdown]
# **Explain.** No formula of chapter 13 has this gap, and it is yours to explain. Divide: how many calls does an update make, and how many milliseconds does that leave for each? How long does a message of 8 KB take on this machine (you measured $\alpha$ in chapter 6)? How many processes share
# a core, and what does a rank do while it waits? Write one line into `report/defence.md`, below "Gaps", that starts with `17.time:`. The report asks for such a line wherever theory and measurement are more than 10 % apart.
#
# **Remember**
# - A small run proves counts, bytes and equality. It proves nothing about time.
# - One function predicts both sizes, so the small run tests the large prediction.
# - A gap without a cause is an open question: write it down.

# %% [markdown]
# ## 17.9 The report
#
# The course ends with a page of your own. `reporting.report()` makes it from what you have done: the plan and its defence, the small run, each prediction beside theory and measurement, the gaps and their causes, exercises, audits, and your library.
#
# At the top is what can be checked without reading. Does the plan fit? Does it hold under both sets of assumptions? Does an engine run it? Are the bytes equal? Is the defence written? Has each gap above 10 % a cause? An honest "no" is worth more than an empty page, and the report names first what you left empty.
#
# **Predict.** You have predicted many numbers in this course. Take those for which a factor makes sense, and sort them by how far off you were. By which factor was the one in the middle off?

# %%
typical = predict("17.typical", "Your typical factor?", yours=None)

# %%
own = reporting.typical_miss()
if own:
    expect(own, label="typical miss", yours=typical)

# %%
reporting.report()

# %% [markdown]
# Open `report.html` in a browser. It is one file that needs no network, so you can send it to somebody. `report.pdf` is the same on paper, if there is a Chromium or Chrome to print it. In a terminal: `course report --name "…" --race`, which also measures your parts beside the course's.
#
# Look at the picture first. Squares left of the line are guesses that were too low, and the tall vertical mark is the middle of a topic. Is there a topic whose squares lie mostly on one side? Correct your next estimate in that direction; the size of a single miss matters
# less.
#
# Then close it for today, and run it again in a month with new predictions. The first numbers stay.
#
# **Remember**
# - Prediction, data, gap: a report without one of them can't be judged.
# - Know the direction of your own error. It is the cheapest correction there is.

# %% [markdown]
# ## What to remember
#
# 1. Said, on its own terms, found: three numbers make the verdict.
# 2. Most published mistakes are right sums on wrong terms. So are most of your own.
# 3. Two families of parallelism pass bits on; two add numbers.
# 4. Whatever overlaps shares a processor. Look for the cause of a gap in another row, and earlier.
# 5. MFU of a training run = HFU of a step · useful part · kept hours.
# 6. Training pays for FLOP, decoding for memory. Prices have dates.
# 7. Plan under two sets of assumptions, and say on which one your plan rests.
# 8. A small run proves counts, bytes and equality, and nothing about time.
# 9. Prediction, data, gap: write all three down, and know the direction of your own error.

# %%
from course_lib import quiz

quiz("17")

# %% [raw] tags=["quiz"]
# A run of 70B on 512 A100 claims 290 TFLOP/s of model FLOP on each GPU. What do you do?
# [ ] believe it: the peak is 312
# [x] ask what was counted: the best matrix product alone reaches 271
# [ ] call it poor
# Why: No training is faster than its matrix products; recomputation may be in the number.
#
# A step takes 20 % less time than before. How much more work is done in a day?
# [ ] 20 %
# [x] 25 %
# [ ] 17 %
# Why: 1 / 0.8: time saved and throughput gained are different numbers.
#
# Two kernels want the whole processor. One has weight 9 and 10 ms of work, the other has weight 1 and 1 ms. When has the small one ended?
# [ ] after 1 ms
# [ ] after 2 ms
# [x] after 10 ms
# Why: It runs at a tenth of its speed as long as the other is there.
#
# FSDP gathers a layer while the one before computes. How many tokens must a GPU of 312 TFLOP/s have in a micro-batch to hide that, at 25 GB/s?
# [ ] about 125
# [ ] about 1,250
# [x] about 12,500
# Why: 2 P t / peak against 2 P / bandwidth: t = peak / bandwidth, as many as the ridge.
#
# LLaMA-2 70B decodes one sequence on 8 RTX 4090, tp 8. What does a token wait for most?
# [x] reading weights
# [ ] bytes on the link
# [ ] computing
# Why: 17 ms for 17 GB of weights. A message has 16 KB: its latency counts, not its bytes.
#
# The same training on an H200 instead of an H100. When is a step much faster?
# [ ] always: the memory is faster
# [x] when memory was short: less recomputation, fewer cuts
# [ ] when the network was slow
# Why: Peak and NVLink are the same; 141 GB save work that too little memory had caused.
#
# Your prediction and the measurement differ by 8 %. What belongs into the report?
# [x] both numbers, and what the theory leaves out
# [ ] the measurement only
# [ ] the theory with a factor that closes the gap
# Why: A fitted factor agrees with one run and explains none.

# %% [markdown]
# **Now you:** open [the exercises](../exercises/17_capstone.ipynb).
#
# **Read on.** Zhao et al. 2023, *PyTorch FSDP*, section 5 (arXiv:2304.11277). BigScience 2022, *BLOOM*, section 3.4 (arXiv:2211.05100), and its chronicles, github.com/bigscience-workshop/bigscience, train/tr11-176B-ml. Pope et al. 2022, *Efficiently Scaling Transformer Inference*
# (arXiv:2211.05102). Weng and Brockman 2022, *Techniques for training large neural networks*, openai.com, for the four families, and Weng 2021, *How to Train Really Large Models on Many GPUs?*, lilianweng.github.io: the two articles behind note 003.

# %% [markdown] tags=["exercise"]
# ## Exercises

# %% tags=["exercise"]
from course_lib import check, hint, solution
from course_lib.theory import planner
from course_lib.theory.inputs import Cluster, Recipe, hardware, models
from course_lib.chapters.ch17_capstone.costs import sharded_backward
from course_lib.chapters.ch17_capstone.streams import Task, shared_timeline

# %% [markdown] tags=["exercise"]
# ### 17.1 Calculate: a million tokens on three cards
#
# LLaMA-2 7B (6,738,415,616 parameters) can be trained on any of three cards, rented by the hour. The prices are examples; put in yours afterwards.
#
# | card | dense bf16 peak | MFU | USD an hour |
# |---|---|---|---|
# | H100-SXM | 989.4 TFLOP/s | 40 % | 2.00 |
# | H200-SXM | 989.4 TFLOP/s | 42 % | 2.50 |
# | RTX4090 | 165.2 TFLOP/s | 35 % | 0.35 |
#
# By $6ND$, how many USD does a million tokens cost on each? At which price per hour would the 4090 be as cheap as the H100? And which MFU must the H200 reach to be as cheap as the H100?

# %% [raw] tags=["hints"]
# How many FLOP is a token, and how many does a card do in an hour?
# USD an hour / 3600 / (MFU · peak) · 6 N · 10^6.
# Where two cards cost the same per token, USD an hour over MFU · peak are equal.

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
# ### 17.2 Implement: what a decoded token waits for
#
# In training, tensor parallelism over 8 cards sends 37.6 GB for each sequence of LLaMA-2 70B; in decoding it sends 4.6 MB for a token (section 17.6). So the network hardly matters for decoding, somebody concludes. Write a function that
# says what one more token for each of `sequences` sequences waits for, and how long that takes. Four things take time. Each of `tp` cards
#
# - reads its part of the weights, in bf16, once for all sequences: `"memory"` (`weights` is their number on all cards together),
# - computes 2 FLOP for each of its weights and each sequence: `"computing"`,
# - sends the bytes of two all-reduces in each layer, of `hidden` numbers in bf16 for each sequence: `"bytes"`,
# - waits for the link's latency in each of the $2(tp-1)$ steps of these all-reduces: `"latency"`.
#
# Keys and values are left out here. `hardware.accelerator(card)` has `memory_bytes_per_s`, `peak_flop_per_s`, `inside.bytes_per_s` and `inside.latency_s`. When does the conclusion fail?

# %% [raw] tags=["hints"]
# Which of the four grow with the number of sequences, and which do not?
# Each layer has two all-reduces forward, and a ring has 2 (tp - 1) steps: each has the link's latency and carries 1/tp of the message.
# Put the four times into a dict; max(times, key=times.get) is the name of the longest.


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
# ### 17.3 Debug: the plan once more, for 13B
#
# (published mistakes, note 004) A friend has read the plan for LLaMA-2 70B and makes one for LLaMA-2 13B in the same way: 512 RTX 4090, one of the 40 layers on each card, micro-batches of 8 sequences of 4096 tokens, 40 of them in an update, under 1F1B. Which of these nine lines are true?

# %% [raw] tags=["hints"]
# Three are right. Divide cards by stages, and count the samples of all whole pipelines.
# Which lines speak of memory as if nothing but the states, or everything twice, were in it? Which speak of a ratio that does not contain the memory at all?
# Section 13.3 has these lines for 70B, exercise 4.3 has the recomputation.

# %% tags=["exercise"]
lines = {
    "32 of the 512 cards have nothing to do": ...,
    "with 40 micro-batches, one for each stage, no card ever waits": ...,
    "an update takes more than three times LLaMA-2's 4.2 million tokens": ...,
    "208 GB of states are less than 9 · 24 GB, so 9 cards can train it": ...,
    "the first stage keeps 40 times the activations of the whole model": ...,
    "full recomputation makes 820 layers out of 40": ...,
    "selective recomputation keeps the inputs of 5 groups of 8 layers, and nothing else": ...,
    "40 micro-batches between two exchanges: each pays a fortieth of one": ...,
    "on H200 instead of H100, tensor parallelism reaches further: the memory is faster": ...,
}
### BEGIN SOLUTION
answers = [True, False, True, False, False, False, False, True, False]
lines = dict(zip(lines, answers, strict=True))
### END SOLUTION
check("17.3", lines)

# %% [markdown] tags=["exercise"]
# ### Four audits
#
# Each of the next four exercises is a verdict on a published claim. You give four things: a number that you have found, the verdict, the cause of the difference (or of the agreement), and a source that supports your number. You have one number of your own here, not two as in section 17.2, so the verdicts are those that you would give a colleague:
#
# - `"holds"`: your number agrees with the claim,
# - `"does not hold"`: it contradicts the claim in the very case that the claim speaks of,
# - `"holds only if"`: the claim is right where it was measured; your number is from another case, in which it isn't.
#
# A verdict that passes is kept as a sentence with your records, and the report prints it.

# %% [markdown] tags=["exercise"]
# ### 17.4 Debug: audit A, 48 seconds
#
# (published mistake, note 004) "With the gradients of 80 micro-batches added up first, a training step takes 48 s", on 2,048 RTX 4090, for LLaMA-2 70B (68,976,648,192 parameters) and 16,384 sequences of 4,096 tokens. Suppose that it does. By $6ND$, how many TFLOP/s would each of the 2,048 cards have to reach if none of
# them ever waited? Compare that with what a 4090 can do in training. What makes the 48 s so short, even if no card ever waits?
#
# - `because`: `"the peak"`, `"the bubble"`, `"the exchange of gradients"`, `"48 idle cards"` or `"a layer rounded up to 1B"`
# - `source`: `"NVIDIA's Ada whitepaper, appendix A"`, `"note 004"`, `"arXiv:2307.09288"` (LLaMA-2) or `"arXiv:2104.04473"` (Megatron-LM's pipelines)

# %% [raw] tags=["hints"]
# How many FLOP has an update of 16,384 sequences of 4,096 tokens?
# Divide them by 48 s and by 2,048 cards. May a card do that?
# The claim takes 330 TFLOP/s as what a 4090 does in training. Who says what it does?

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
# ### 17.5 Debug: audit B, twice the batch
#
# (published claim, note 002) FSDP allows a larger batch: on two cards of 24 GB, GPT-2 Large trains with 15 samples on each card instead of DDP's 7. "FSDP doubles the batch", people conclude. What does it do for GPT-2 124M (124,439,808 parameters), on the same two cards and with samples of the same 128 tokens?
#
# Everything is fp32 with AdamW. A card has 23.65 GiB, and CUDA takes 1 GiB of it. DDP keeps 16 bytes for each parameter, and 4 more for the copies of gradients in its buckets. FULL_SHARD on two cards keeps half of the 16; ignore the layer that it gathers. `found` is the factor: the batch under FULL_SHARD over that under DDP, without rounding to whole samples.
#
# - `because`: `"the states' share of the card"`, `"sequences of 128 tokens"`, `"two cards instead of more"`, `"fp32 instead of bf16"` or `"the network"`
# - `source`: `"github.com/huggingface/blog, pytorch-fsdp.md"`, `"note 002"`, `"arXiv:2304.11277"` (FSDP) or `"arXiv:1910.02054"` (ZeRO)

# %% [raw] tags=["hints"]
# How many bytes are left for samples under DDP, and how many under FULL_SHARD?
# The batches are as these two rooms: what a sample takes is the same under both.
# DDP: 16 bytes a parameter and 4 for its buckets. FULL_SHARD on two cards: half of 16.

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
# ### 17.6 Debug: audit C, giving way
#
# (published claim, note 001) Before each reduce-scatter FSDP prepares the gradients with small kernels in the stream of the messages. These "run in parallel to the computing and slow the communication severely", so that gaps appear in the computing as well. But they are so small!
#
# Take a long backward pass. Alone, a layer computes for 10 ms, preparing its gradients takes 1 ms, the reduce-scatter 6 ms and the next gather 3 ms. Computing and preparing both want the whole processor, with weights 9 and 1. Gathers and reduce-scatters use only the network and stand in one stream with the preparing. In the middle of the pass, how many ms lie between the ends of two layers' computing? Work it out by hand first, then with
# `sharded_backward` and `shared_timeline`. Does the claim hold for this pass, with these weights? Then look for the cause: which of these five, taken away, would end the waiting although each part alone stays as long as it is?
#
# - `because`: `"the processor they share"`, `"the network"`, `"the size of the copies"`, `"too few streams"` or `"the CPU"`
# - `source`: `"Khrushchev 2024, YaFSDP (Medium)"`, `"github.com/yandex/YaFSDP, README"`, `"arXiv:2304.11277"` (FSDP) or `"note 001"`

# %% [raw] tags=["hints"]
# How long do the copies take while a layer computes beside them?
# Which stream is the longer one now, for each layer: computing, or messages?
# Messages for a layer: copies, reduce-scatter, gather. Only the copies are slowed.

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
# ### 17.7 Debug: audit D, sustained
#
# (published claim) The news about an award for BLOOM says that the model "achieved sustained performance of 156 TFlops/GPU", 50 % of an A100's peak (genci.fr). BLOOM has 176.247 billion parameters, was trained on 366 billion tokens, and took 1,082,990 GPU-hours. Activations were recomputed in full, and the 156 include what was computed twice. Take "sustained" at its word: over the whole training. Counted in the same way as the 156, how
# many TFLOP/s was the mean of the whole training?
#
# - `because`: `"hours below the best speed"`, `"recomputation"`, `"sparse matrices"`, `"attention's scores"` or `"four spare nodes"`
# - `source`: `"arXiv:2211.05100"` (BLOOM), `"github.com/bigscience-workshop/bigscience, tr11-176B-ml"`, `"genci.fr, news on BLOOM's award"` or `"arXiv:2001.08361"` (scaling laws)

# %% [raw] tags=["hints"]
# FLOP of the whole training over seconds of all its GPUs.
# Full recomputation: 8 FLOP for each parameter and token, and the claim counts so.
# The paper says 156 of which configuration?

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
# ### 17.8 Debug: 26 % as throughput
#
# (published claims, note 001) "Training time falls by up to 26 %", "25 % faster", "saves 150 GPUs". Take the row of LLaMA-2 70B from section 9.8, 256 GPUs and 2048 tokens: a step takes 8.87 s with FSDP and 6.97 s with YaFSDP. A training takes 60 days with FSDP.
#
# Give the days with YaFSDP; the factor by which more tokens are trained in the same 60 days; and the number of GPUs (a fraction is fine) with which YaFSDP needs 60 days again, if it scales linearly. Now to the 150 GPUs: out of how many are they saved, at this row's saving? And at that of the table's weakest row, 2.32 %?

# %% [raw] tags=["hints"]
# Is it time that is saved, or work that is gained? Take the seconds of the two steps.
# 60 · after / before; before / after; 256 · after / before.
# 150 GPUs are the saved part of how many?

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
# ### 17.9 Predict: 141 GB
#
# Three training runs move from H100 to H200, in nodes of 8: the same peak and the same NVLink, but 141 GB instead of 80. What does the planner buy with the memory: `"no recomputation"`, `"fewer cuts"` (a smaller $tp \cdot pp \cdot cp$) or `"larger micro-batches"`? Take the first of these that applies. And if an hour of an H200 costs a quarter more than
# one of an H100, for which of the three is it cheaper per token? Write down your guess first. Then ask the planner for the fastest layout on either card.

# %% [raw] tags=["hints"]
# Is the memory of the H100 the problem at all? 70B on 16 GPUs: how much is there for each?
# planner.plan(models.MODELS[…], Recipe(), Cluster(card, nodes), batch, sequence=…), for both cards; .best(1)[0].explain() has recompute, tp, pp, cp and micro_batch.
# A card that costs a quarter more must make the step a quarter faster.

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
# ### 17.10 Predict: bytes of the built layout
#
# Before you build a layout, say what it will send. Eight ranks, $dp = tp = pp = 2$, train a GPT of 4 layers with hidden size 64 and an alphabet of 128 characters, on 8 sequences of 16 characters in an update; each replica runs its 4 sequences in two pieces. Everything is fp32. How many bytes does rank 0, on the first stage, send over tp's all-reduces, to the next
# stage, and over dp's all-reduces? It stores 55,488 parameters. Then say for each change which axis sends at least twice the bytes: `"tp"`, `"dp"`, `"both"` or `"neither"`. When you have answered, build it: `course demo three_d --ranks 8 --model 4x64x4`.

# %% [raw] tags=["hints"]
# A micro-batch is 2 of the 8 sequences. How many numbers has one message?
# tp: four all-reduces in each of rank 0's two layers and one in the embedding, for each piece. pp: one message for each piece. dp: the gradients of what rank 0 stores, once.
# local_parameters(shape, Layout(dp=2, tp=2, pp=2), stage=0).total numbers of 4 bytes.

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
# ### 17.11 Build: streams that share a processor
#
# Write the timeline of section 17.4. `rates` says how fast tasks run while all of them run; `shared_timeline` says what runs when. A `Task` has a name, a stream, the seconds that it takes alone (`alone_s`), `demands` (the fraction of each resource that it uses at full speed), a `weight`, and `after`: names of tasks that must have ended.
#
# - All rates grow together, each in proportion to its task's weight, until the task runs at full speed, which is 1, or something that it uses is used up. The others go on growing.
# - Each stream runs its tasks in the order in which they are given. While no task ends, no rate changes: each running task gets a `Span` for that time.
# - `SharedTimeline(tasks, spans, ideal_s)` holds the result; `ideal_s` is the end if every task always ran at full speed.
# - Tasks that wait for each other raise a `ValueError`.
#
# The check runs your functions on examples worked out by hand and on random tasks, and counts the work of every span. A version that passes is kept as `mine/shared_rate.py`. Then run exercise 17.6 on it: `mine.shared_timeline(tasks).explain()`.

# %% [raw] tags=["hints"]
# rates: let all rates grow from 0 together, each as fast as its weight. What stops them first: a task at full speed, or a resource that is used up?
# The next stop: the smallest of (1 - rate) / weight over the tasks that still grow, and of (1 - used) / (the sum of weight times demand of those that grow) over the resources. Whoever is stopped there drops out; go on with the others.
# shared_timeline: keep the work that is left of each task. The first unfinished task of each stream runs, if all of its `after` have ended. Until when does no rate change?
# The next moment is the smallest of left / rate. Give each running task a Span, take rate times the time off its work, and drop what is left to rounding: 1e-9 of the work.
# ideal_s: the same run with all rates 1. Nothing can run, and something is left: ValueError.

# %% tags=["exercise"]
from collections.abc import Sequence

from course_lib.chapters.ch17_capstone.streams import SharedTimeline, Span, Task

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
from course_lib.chapters.ch17_capstone.streams import rates, shared_timeline

### END SOLUTION

check("17.11", [rates, shared_timeline])

# %% [markdown] tags=["exercise"]
# ### 17.12 Build: an audit of a run
#
# Write the audit that you would run on the next claim you read. From parameters, tokens, GPU-hours and the card's dense peak it computes the model FLOP per second of one GPU by $6ND$, the utilisation, and a verdict: `"impossible"` if the utilisation is above `most`, `"poor"` if it is below `least`, else `"plausible"`. No training is faster than the best single
# matrix product, which reaches 0.87 of an A100's peak. The 0.2 is a convention. A claim without a source, or with a quantity that is 0 or less, is not judged: raise a `ValueError`.
#
# The check runs it on BLOOM, LLaMA, Llama 3.1 and DeepSeek-V3, and on claims that cannot be true. A version that passes is kept as `mine/claims.py`. From then on, `from course_lib import mine; mine.audit_run(…)` judges any claim that you meet.

# %% [raw] tags=["hints"]
# How many FLOP are 6 N D, and how many GPU-seconds are the hours?
# JudgedRun(flop_per_s, utilisation, verdict, source): the rate of one GPU, and that over its dense peak.
# Above `most` it is impossible, below `least` it is poor; on a limit it is plausible.
# `if not source: raise ValueError(…)`, and the same for each number that is 0 or below.

# %% tags=["exercise"]
from course_lib.chapters.ch17_capstone.claimed import JudgedRun

### BEGIN GIVEN


def audit_run(
    parameters: float,
    tokens: float,
    gpu_hours: float,
    peak_flop_per_s: float,
    *,
    source: str,
    most: float = 0.87,
    least: float = 0.20,
) -> JudgedRun:
    """JudgedRun(flop_per_s, utilisation, verdict, source) of a training run."""
    ...


### END GIVEN
### BEGIN SOLUTION
from course_lib.chapters.ch17_capstone.claimed import audit_run

### END SOLUTION

check("17.12", audit_run)
