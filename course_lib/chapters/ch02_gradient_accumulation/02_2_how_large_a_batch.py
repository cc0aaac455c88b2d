# %% [raw] tags=["sitting"]
# question: How large a batch is worth its samples?
# importance: 4
# difficulty: 3
# group: alone

# %% [markdown]
# # 2 How large a batch is worth it
#
# With accumulation you can make the batch as large as you like. At batch 16 a small model learns best with a learning rate of 8. Which rate is best at batch 1024,
# and does the model learn as much from the same data? By the end of this notebook you can
#
# - adapt the learning rate to another batch, and say where the rule ends,
# - say how many samples and updates a batch costs,
# - measure in a running training whether a larger batch would help.

# %%
import math

import torch
from torch.optim import SGD, Adam

from course_lib import expect, launch, measure, predict, scratch, show_source
from course_lib.chapters.ch02_gradient_accumulation import figures, noise
from course_lib.demos.shared.text import VOCAB, Windows, load_text
from course_lib.scratch.accumulation import accumulate, final_losses
from course_lib.theory import batching

launch.warm_up()
torch.set_num_threads(1)

# %% [markdown]
# ## 2.4 The learning rate of a larger batch
#
# With a batch 8 times as large there are 8 times fewer updates. With the same
# learning rate (学习率), SGD moves the weights only about an eighth as far in an epoch. There are two rules of thumb:
#
# | optimizer | rule | batch 256 → 2048 | source |
# |---|---|---|---|
# | SGD | linear: lr × ratio | 0.1 → 0.8 | Goyal et al. 2017, arXiv:1706.02677 |
# | Adam, and LAMB for large batches | square root: lr × √ratio | 0.0003 → 0.00085 | You et al. 2019, arXiv:1904.00962 |
#
# Why linear for SGD? Eight small steps of length lr along nearly the same gradient are one step of
# length 8 · lr. Why a square root for Adam? It divides the gradient by its running root
# mean square. If noise dominates the gradient, that root shrinks like $1/\sqrt{B}$, so with 8 times the batch each step
# is already $\sqrt8$ times as long in the direction of the true gradient. The learning rate supplies the missing $\sqrt8$.
#
# Do the rules hold? We try them on a model so small that we can train dozens of them: a table of 128 × 128 numbers that says, for each
# character, which one comes next. Every run sees 16,384 characters of our story, in batches of 16 to 1024; then we take its loss on the whole story.
#
# **Predict.** We try the rates 2, 4, 8 and so on up to 1024. At batch 16, SGD does best with 8. With which rate does it do best at batch 1024?

# %%
best_1024 = predict("2.rate_1024", "Best rate at batch 1024?", yours=None)

# %%
story, batches = load_text(), (16, 64, 256, 1024)


def sweep(optimizer, rates):
    """{batch: {learning rate: final loss}}."""
    return {b: final_losses(optimizer, rates, b, story, VOCAB) for b in batches}


def best_rates(swept):
    """{batch: the learning rate with the lowest loss}."""
    return {batch: min(losses, key=losses.get) for batch, losses in swept.items()}


# %%
with_sgd = sweep(SGD, [2.0**power for power in range(1, 11)])
with_adam = sweep(Adam, [2.0**power for power in range(-7, 0)])
best_sgd, best_adam = best_rates(with_sgd), best_rates(with_adam)

# %%
rate = batching.scaled_learning_rate
assert rate(0.1, base_batch=256, batch=2048, rule="linear") == 0.8
assert round(rate(3e-4, base_batch=256, batch=2048, rule="sqrt"), 5) == 0.00085
expect(rate(8, 16, 64, "linear"), best_sgd[64], label="SGD at batch 64")
expect(rate(best_adam[16], 16, 64, "sqrt"), best_adam[64], label="Adam at batch 64")
expect(..., best_sgd[1024], label="SGD at batch 1024", yours=best_1024)
assert rate(8, 16, 1024, "linear") == 512

# %% tags=["drawing"]
guessing = math.log(VOCAB)  # the loss of an empty table
curves = {
    f"batch {batch}": [point for point in losses.items() if point[1] < guessing]
    for batch, losses in with_sgd.items()
}
axes = "learning rate", "loss after 16,384 characters"
figures.lines(
    curves, *axes, "SGD: a larger batch wants a larger rate", doubling=(True, False)
)

# %% tags=["drawing"]
curves = {
    "linear rule": [(batch, rate(1.0, 16, batch, "linear")) for batch in batches],
    "SGD": [(batch, best / best_sgd[16]) for batch, best in best_sgd.items()],
    "root rule": [(batch, rate(1.0, 16, batch, "sqrt")) for batch in batches],
    "Adam": [(batch, best / best_adam[16]) for batch, best in best_adam.items()],
}
axes = "batch in characters", "best learning rate over that at batch 16"
figures.lines(curves, *axes, "The rules and the sweep", doubling=(True, True))

# %%
small, large = (min(with_sgd[batch].values()) for batch in (16, 1024))
print(f"best loss: {small:.2f} with batch 16, {large:.2f} with batch 1024")
print(f"batch 1024, rate 256: {with_sgd[1024][256]:.2f}; guessing: {guessing:.2f}")
assert abs(small - 2.46) < 0.02 and abs(large - 2.70) < 0.02
assert best_sgd[1024] == 128 and 3.5 < with_sgd[1024][256] < guessing

# %% [markdown]
# **Explain.** From batch 16 to 64 SGD's best rate grows by 4 and Adam's by 2, as the rules say, to the nearest
# doubling. But at batch 1024 SGD does best with 128, where the linear rule says
# 512. With 256 the steps are already so long that they overshoot: the loss is little better than that of guessing.
# And even at the best rate, SGD only reaches a loss of 2.70, not 2.46. So the linear rule ends somewhere. Where?

# %% [markdown]
# **Remember**
# - Linear rule for SGD, square root for Adam; but at a large batch the linear rule overshoots.

# %% [markdown]
# ## 2.5 How large is too large? Gradient noise
#
# The gradient of a batch is an estimate of the gradient over all data, and it is noisy: another
# batch gives another one. Averaging over $B$ independent samples divides the variance by $B$: it is $\operatorname{tr}\Sigma/B$, where
# $\operatorname{tr}\Sigma$ is the variance of a single sample's gradient, summed over all weights. So from batch 2 to batch 8 the
# variance falls by 4. We measure it with a GPT that is not trained yet, on 96 batches of each size:

# %%
text = Windows(sequence=64)
torch.manual_seed(0)
model = scratch.gpt.GPT(layers=2, hidden=64, heads=4, vocab=VOCAB, context=64)


def gradients(batch, count=96):
    """Gradients of `count` batches of randomly drawn samples: (count, parameters)."""
    generator = torch.Generator().manual_seed(batch)
    found = []
    for _ in range(count):
        rows = torch.randint(len(text), (batch,), generator=generator)
        model.zero_grad()
        accumulate(model, [text.batch(rows.tolist())])
        found.append(measure.gradients.flat_gradient(model))
    return torch.stack(found)


# %%
small, big = gradients(batch=2), gradients(batch=8)
fall = float(small.var(dim=0).sum() / big.var(dim=0).sum())
expect(8 / 2, fall, within=0.35, label="variance, batch 2 / batch 8")

# %% [markdown]
# Now compare the noise with the signal, the true gradient $G$. As long as noise dominates, a larger batch helps in full. Once
# the noise is smaller than $G$, a larger batch only refines an already good direction. The turning point is about
#
# $$B_\text{crit}\approx\frac{\operatorname{tr}\Sigma}{|G|^2},$$
#
# the **critical batch size** (临界批次大小). Two batch sizes
# suffice to estimate it, because $|g_B|^2$, the squared length of a batch's gradient, is $|G|^2+\operatorname{tr}\Sigma/B$ on average
# (McCandlish et al. 2018, arXiv:1812.06162, appendix A.1).

# %%
critical = batching.noise_scale(
    small=2,
    square_small=measure.gradients.mean_square_norm(list(small)),
    big=8,
    square_big=measure.gradients.mean_square_norm(list(big)),
)
print(f"critical batch of the untrained model: about {critical:.1f} samples")
assert 0 < critical < 1

# %% [markdown]
# Less than one sample of 64 characters! An untrained model is easy to improve: every batch says the
# same thing, "learn which letters are frequent". As the model learns, the critical batch grows (section 2.9). Llama 3 405B
# began with 4M tokens per batch and ended with 16M (arXiv:2407.21783, section 3.4.1).
#
# ### What a batch costs
#
# What does a batch $B$ cost, if training is to converge (收敛) to the same loss? McCandlish et al. give a simple model:
#
# $$\frac{\text{updates}}{\text{fewest updates}}=1+\frac{B_\text{crit}}{B},\qquad
# \frac{\text{samples}}{\text{fewest samples}}=1+\frac{B}{B_\text{crit}}.$$
#
# At $B=B_\text{crit}$ both are 2. So "large batches hurt" is too simple: below the critical batch
# they cost few samples and save time; far above it they waste samples. Move the batch: where does doubling it nearly double the samples?

# %%
from course_lib.chapters.ch02_gradient_accumulation import panels

panels.critical_batch()

# %%
at_critical = batching.batch_cost(batch=1.0, critical_batch=1.0)
assert (at_critical.steps, at_critical.samples) == (2.0, 2.0)
assert batching.batch_cost(batch=0.5, critical_batch=1.0).steps == 3.0

# %% [markdown]
# From about ten times the critical batch: there, doubling it raises the samples from 11 to 21 times the fewest.
#
# The same paper (section 2.2) has a formula for SGD's best rate:
#
# $$\text{rate}(B)=\frac{\text{largest rate}}{1+B_\text{crit}/B}.$$
#
# Far below the critical batch that is the linear rule. Far above it the rate is constant.
#
# ### Four ranks measure it
#
# Does the critical batch of the table explain the 128 of section 2.4? Data-parallel training measures it
# almost for free, because it makes gradients of two batches anyway: a rank's own, before the all-reduce, and the mean of all ranks, after it.

# %%
show_source(noise.train_and_read)

# %% [markdown]
# **Predict.** Four ranks train the table, each with 16 characters per update, so that the batch is 64.
# By what factor is the mean of $|g|^2$ smaller after the all-reduce than before? (If all gradients were equal: 1. If they were pure noise: 4.)

# %%
squares = predict("2.squares", "Squared length, before / after?", yours=None)

# %%
results = launch.run(noise.train_and_read, best_sgd[64], 256, 16, ranks=4)
own, together = results[0]
expect(4, own / together, within=0.25, label="before / after", yours=squares)

# %%
of_table = batching.noise_scale(16, own, 64, together)
print(f"critical batch of the table: about {of_table:.0f} characters")
expect(
    rate(best_sgd[16], 16, 1024, "linear", critical_batch=of_table),
    best_sgd[1024],
    within=0.4,  # only doublings were tried
    label="SGD's best rate at batch 1024",
)

# %% [markdown]
# **Explain.** At batch 64 most of the gradient is noise. The critical batch is about 330 characters, and the formula now gives a best rate of 130 at
# batch 1024. Two independent measurements agree: how much the ranks' gradients differ, and which rate wins a sweep.
#
# **Remember**
# - Far below the critical batch, twice the batch needs nearly half the updates. Far above, it needs nearly twice the samples.
# - The critical batch grows while the loss falls, and data parallelism measures it at almost no cost.

# %% [markdown]
# ## The answer
#
# At batch 1024 the best rate is 128, not 512, and the model learns less from the same data: its loss is 2.70 instead of 2.46. The critical batch is only about 330 characters, and a batch is worth its samples up to there. At the critical batch you
# pay twice the fewest samples and twice the fewest updates; at batch 1024, about four times the fewest samples.

# %%
assert 250 < of_table < 420
assert 3.4 < batching.batch_cost(1024, critical_batch=of_table).samples < 5.1

# %%
from course_lib import quiz

quiz("2")

# %% [raw] tags=["quiz"]
# What does accumulation 8 reduce, with the same micro-batch and the same data?
# [ ] forward passes
# [x] updates
# [ ] memory of the weights
# Why: Every sample still passes once; the weights change an eighth as often.
#
# Two gradients that should be equal differ by 2e-7, relative to their size. Probably …
# [ ] a bug in the data order
# [x] float32 rounding
# [ ] a missing all-reduce
# Why: float32 has a relative precision of 6e-8; sums in another order round differently.
#
# When is loss.mean() / accumulation the right loss of a micro-batch?
# [ ] always
# [x] when all micro-batches have equally many tokens
# [ ] when the optimizer is Adam
# Why: Only then is the mean of the means the mean over all tokens.
#
# no_sync surrounds loss.backward() but not the forward pass. What happens?
# [ ] an error
# [ ] wrong gradients
# [x] right gradients, and an exchange in every micro-step
# Why: DDP decides in forward; it exchanges each time, and nobody notices.
#
# Batch 512 on two GPUs: micro-batch 8 with accumulation 32, or micro-batch 1 with accumulation 256? What differs?
# [ ] the gradient
# [x] memory and time
# [ ] the number of exchanges in an update
# Why: Activations shrink by 8 and each sample takes longer; the gradient and its one exchange stay.
#
# The batch is a tenth of the critical batch. Doubling it …
# [x] nearly halves the updates
# [ ] doubles the samples needed
# [ ] changes nothing
# Why: Updates go as 1 + Bcrit/B: 11 becomes 6; samples go from 1.1 to only 1.2.

# %% [markdown]
# **Read on.** McCandlish et al. 2018, *An Empirical Model of Large-Batch Training*, sections 2 and
# 5. Shallue et al. 2019 (arXiv:1811.03600) on what large batches do and do not harm.

# %% [markdown] tags=["exercise"]
# ### 2.7 Predict: is batch 1024 worth it?
#
# A log gives the mean squared length of the gradient: 5.0 at batch 32, 2.0 at batch 256. A colleague proposes batch 1024. Guess first, then compute: what will the mean
# squared length be there? What is the critical batch? And how many times the fewest samples does batch 1024 need?

# %% [raw] tags=["hints"]
# importance 4, difficulty 3
# The squared length has two parts. Which of them does not depend on the batch?
# Section 2.5: |G|² + tr Σ / B. Two batches, two equations, two unknowns.
# Subtract: 5.0 - 2.0 is tr Σ times (1/32 - 1/256).

# %% tags=["exercise"]
squared_length, critical_batch, samples_ratio = ..., ..., ...
### BEGIN SOLUTION
noise = (5.0 - 2.0) / (1 / 32 - 1 / 256)  # tr Σ: what falls as 1/B
signal = 5.0 - noise / 32  # |G|²: what stays
squared_length = signal + noise / 1024
critical_batch = noise / signal
samples_ratio = 1 + 1024 / critical_batch
### END SOLUTION
check("2.7", [squared_length, critical_batch, samples_ratio])

# %% [markdown] tags=["exercise"]
# ### 2.8 Debug: two sweeps without labels
#
# "Usually a smaller batch needs a smaller learning rate" (note 004). How much smaller? Two sweeps looked for the best rate of one model, one with SGD and one with
# Adam, but the labels are lost:
#
# | batch | sweep X | sweep Y |
# |---|---|---|
# | 128 | 0.04 | 0.05 |
# | 640 | 0.0894 | 0.2 |
#
# Which one is Adam's, `"X"` or `"Y"`, and which rate would you give Adam at batch 8? SGD's rate grows more slowly than the linear rule says, because the batch is near the critical one. How large is the critical batch? And which rate should SGD have at batch 5760?

# %% [raw] tags=["hints"]
# importance 3, difficulty 4
# The batch grows by a factor of 5. By what factor does the rate grow according to each rule?
# Far below the critical batch SGD's factor would be 5; near it, less. Adam's is √5.
# Section 2.5: rate · (1 + critical batch / batch) is the same number at both batches.

# %% tags=["exercise"]
adams, adam_at_8, critical_batch, sgd_at_5760 = ..., ..., ..., ...
### BEGIN SOLUTION
adams = "X"  # 5 times the batch, √5 = 2.24 times the rate
adam_at_8 = 0.04 * (8 / 128) ** 0.5
# 0.05 · (1 + critical / 128) = 0.2 · (1 + critical / 640): both are the largest rate.
critical_batch = (0.2 - 0.05) / (0.05 / 128 - 0.2 / 640)
largest = 0.05 * (1 + critical_batch / 128)
sgd_at_5760 = largest / (1 + critical_batch / 5760)  # the linear rule says 1.8 or more
### END SOLUTION
check("2.8", [adams, adam_at_8, critical_batch, sgd_at_5760])

# %% [markdown] tags=["exercise"]
# ### 2.9 Debug: do large batches hurt?
#
# (published mistake, note 004) A very large batch "affects the speed of convergence, or
# the accuracy after it". The sentence does not say what "large" is compared with. A run with a batch of 0.5M tokens reached its loss after 1.25 trillion ($10^{12}$) tokens;
# the critical batch was 2M tokens. Now you get 32 times the GPUs. Each does what it did before, so the batch is 16M tokens and an update takes as long as before. For the same loss, how many trillion tokens and how many updates does the run need, and how many times as fast is it?

# %% [raw] tags=["hints"]
# importance 3, difficulty 3
# How large is each batch, measured in critical batches?
# From the tokens at 0.5M: what are the fewest tokens with which any batch gets there?
# An update takes as long as before. So which ratio is the gain in time?

# %% tags=["exercise"]
trillions, updates, times_as_fast = ..., ..., ...
### BEGIN SOLUTION
fewest = 1.25 / (1 + 0.5 / 2)  # trillion tokens
trillions = fewest * (1 + 16 / 2)
updates = trillions * 1e12 / 16e6
times_as_fast = 1.25e12 / 0.5e6 / updates  # not 32, and at 7 times the price
### END SOLUTION
check("2.9", [trillions, updates, times_as_fast])
