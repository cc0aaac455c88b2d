# %% [markdown]
# # Start here
#
# In 2024 Llama 3 405B was trained on 16,384 GPUs (arXiv:2407.21783, section 3.3). Who decided that a
# GPU works on this piece of the model and not on that one? Why did it take 30.84 million GPU-hours (Llama
# 3.1's model card) and not 20? Which of these numbers can you check yourself?
#
# This course teaches how large models are trained on many accelerators (加速器). You need a
# laptop, Python and a little PyTorch. You do not need a GPU: programs that run on many GPUs
# run here on several processes (进程) of your computer, and what they send, store and compute is counted
# exactly. On a machine with GPUs these programs use them. What a notebook measures in its own
# process, as chapters 3 and 5 do, stays on the CPU.
#
# Time: about 20 minutes.

# %% [markdown]
# ## How to run a cell
#
# This page is a notebook: text, and cells of Python with `[ ]:` at their left. Click a cell and press Shift-Enter. It runs, and the
# next one is selected; the ▶ in the bar above the page does the same. Ctrl-Enter runs a cell and stays there, so that you can look at what it shows.
#
# Run the cells from top to bottom, since most of them use what stands above. A grey line without brackets is a folded cell. It imports what the cells
# below use, so run it too. While a cell runs, it has the sign `[*]`, and the ■ in the bar stops it.
#
# Here are all 16,384 GPUs, one small box each. Run the next two cells. Then **press the ▶ beside "step" and watch the box in
# the corner**: with whom does this GPU talk, and how much does it send? The layout is the one that the authors describe. The
# numbers are computed by the course, and you will compute them yourself in chapter 13.

# %%
from course_lib import doctor, expect, launch, outline, predict
from course_lib.chapters.ch00_start_here import figures
from course_lib.checking import grade
from course_lib.checking.report import in_brief
from course_lib.mine import PARTS


# %%
from course_lib.chapters.ch00_start_here import steppers

steppers.block()

# %% [markdown]
# **Remember** the three directions. Eight GPUs share each matrix (chapter 10): of the 297 GB that a GPU sends in one update, 271 stay
# among these eight, inside one computer. (The course counts a ring, in which each GPU sends to the next one.) Sixteen groups share the layers (chapter 11): that takes the fewest bytes, 8 GB. And 128 copies share the text (chapter 7), for 18 GB. The rest
# of the course takes this block apart.

# %% [markdown]
# ## Can this computer run the course?
#
# The next cell starts 2 and then 4 processes, lets them exchange a number, and says how long
# that took. The first start takes a few seconds, the next ones a fraction of one. In a terminal, `course doctor` looks at more and says what to do about it.
#
# Each notebook that you open runs in its own process, its **kernel** (内核). It keeps running when you close the
# notebook, and holds 450 to 860 MB, together with the helper that starts other processes for it. Before you open a large chapter, end the kernels of earlier ones: *Kernel → Shut Down All Kernels*.

# %%
doctor.self_test()

# %% [markdown]
# ## How each chapter works
#
# Every chapter repeats one loop:
#
# 1. **Predict** (预测). You commit to a number before anything runs.
# 2. **Measure** (测量). Code runs and counts: bytes, operations, messages, seconds.
# 3. **Explain the gap** (解释差距). Where the two differ, we say why, and how large the difference may be.
#
# Here is the loop once, on a small scale. Four processes are numbered 0, 1, 2 and 3. Such a number is called a **rank** (进程编号).
# Each process holds its own rank, and they add them up so that each has the sum. This is called an **all-reduce** (全规约). You will meet it again in
# chapter 2, and in most chapters from 6 on.
#
# **Predict.** They do it twice: the result of the first all-reduce goes into a second one. What does each
# process have in the end? Run the cell with `predict`, write your number in its box and press Enter. (Outside
# a notebook, put it in place of `None`.) Your first number is the one that counts. If you leave the box empty, the notebook carries on without it.

# %%
total = predict("0.twice", "What does each process have in the end?", yours=None)

# %% [markdown]
# **Measure.** `launch.run` starts the processes and calls the function in each of them.


# %%
def add_up():
    """Adds up the ranks of all processes, twice."""
    import torch
    import torch.distributed as dist

    mine = torch.tensor(dist.get_rank())
    print(f"I have {mine.item()}")
    dist.all_reduce(mine)
    print(f"After one all-reduce I have {mine.item()}")
    dist.all_reduce(mine)
    return mine.item()


results = launch.run(add_up, ranks=4)
results

# %%
assert len(set(results)) == 1
expect(4 * (0 + 1 + 2 + 3), results[0], label="twice", yours=total)

# %% [markdown]
# `expect` shows three numbers on one line. *You* is the number that you committed to, and how far it was from the result. If you
# wrote none, the answer stays folded until you write one or open it. *Theory* is what a formula says. *Measured* is what the run found, and above it
# stands the gap to theory. If that gap is larger than the notebook allows, the cell stops with an error. Your own number may be as wrong as it likes:
# nothing stops, and a wrong prediction is where you learn most.
#
# **Explain.** No gap: counting is exact. After the first all-reduce *every* process has 6, so the second
# one adds up four sixes: 24, not 12. When we measure *times* or *memory*, there will be gaps, and they
# will be the interesting part.
#
# Each line of the output carries the rank of the process that printed it. The lines may
# come in any order, because the processes really run side by side.

# %% [markdown]
# ## Sliders
#
# Most chapters have a panel like this one. Move a slider with the mouse or the arrow keys, or type an exact value into the
# box beside it. The results come from the same functions that the text and
# the tests use. What the words mean is the subject of chapter 1.

# %%
from course_lib import panels

panels.batches(samples=1000, micro_batch=5, accumulation=2)

# %% [markdown]
# ## Exercises
#
# Each chapter has a notebook of exercises in the folder `exercises/`. There are five kinds:
#
# | kind | what you do |
# |---|---|
# | **calculate** | work out a number |
# | **predict** | commit to a number or a verdict first, and find out afterwards |
# | **debug** | find what is wrong: in code, in a run's output, in a published claim |
# | **implement** | write one short function |
# | **build** | write a part of a training library: DDP, a pipeline, an optimizer |
#
# A check runs your code, so a loop without an end keeps it waiting: the cell shows `[*]`, and so do the ones below. Press ■ in the toolbar (interrupt the kernel), mend the loop, and run
# the cell again. (What runs on ranks is ended for you, and the check says so.)
#
# A build that passes is kept as a Python file in the folder `mine/`, and what comes later runs on it: `course mine`, in a
# terminal, shows what you have built so far. A check answers at once:
#
# ```
# check("1.1", answer)  # right, or what kind of wrong
# hint("1.1")           # one hint more each time
# solution("1.1")       # an answer; the exercise then counts as seen
# ```
#
# For a wrong answer, the check says what kind of wrong it is, but not the right value. Here are two wrong numbers for exercise 1.1. (`grade` looks at an answer and
# records nothing.)

# %%
print(grade("1.1", (976, 950)).line)

# %% [markdown]
# The hints lead towards the right answer. After the last one comes the reason, if you have tried an answer by then. What you passed before you looked at the
# solution stays passed.
#
# A count must be exact. Any other number you may round to three digits, or write as a text with its unit. The check converts it to the unit
# that the exercise asks for: `"280 GB"` is 280 where it asks for GB, 280e9 where it asks for bytes, and `"15 %"` is 0.15 where it asks for a
# fraction. Write a decimal point: a comma only separates thousands.

# %%
print(grade("3.1", ["1 TB", {}, {}]).line)  # 3.1 asks for GB
print(grade("3.1", ["0,9 TB", {}, {}]).line)

# %% [markdown]
# The solved notebooks are in `solutions/`. In a terminal,
# `course check exercises/01_steps_and_batches.ipynb` grades a whole notebook as it was last saved, so press Ctrl-S first (a cell that runs for two minutes is ended there), and `course progress`
# shows what you have done. Your progress is kept in your own user folder, and nothing
# that you write is ever overwritten. This is how far you are:

# %%
print(in_brief())

# %% [markdown]
# ## The notes
#
# This course grew out of five widely read sets of Chinese study notes on training large
# models. They ask the right questions. Many of their answers are right, and some are not. Where the course
# says "the notes", it means these five, and names one by its number:
#
# | | what it is | about |
# |---|---|---|
# | 000 | notes with the title "ML" | data and tensor parallelism, terms, what is in a GPU's memory, commands |
# | 001 | a post of the blog 鱼雪 | FSDP and YaFSDP |
# | 002 | excerpts of several articles, as a web search shows them | DDP, FSDP, RPC |
# | 003 | "How to train large models", lryc.cn/news/422711 | the kinds of parallelism, after two English articles |
# | 004 | "Estimating the compute of GPUs", on CSDN | bandwidth, 3D parallelism on 2048 GPUs, the batch |
#
# Where a note is wrong, or leaves out a condition, it becomes an exercise, marked "published mistake, note
# 004". A published number deserves to be checked, and you will be able to.

# %% [markdown]
# ## The map
#
# Seventeen chapters follow this one. You can read them in order, or follow the arrows to the one that
# you came for: FSDP, for example, needs chapters 1, 2, 3 and 5 to 8 first.

# %%
figures.course_map(outline.CHAPTERS, outline.steps(), PARTS)

# %% [markdown]
# | | chapter | the question | what you build |
# |---|---|---|---|
# | 1 | [Steps and batches](01_steps_and_batches.ipynb) | 200 steps and still 100 updates: how? | |
# | 2 | [Gradient accumulation](02_gradient_accumulation.ipynb) | How do you train with batch 512 on two small GPUs? | accumulation, alone and with DDP |
# | 3 | [What is in the memory](03_what_is_in_the_memory.ipynb) | Why does a 13.5 GB model not train in 80 GB? | AdamW for bf16 weights, AdamW in 8 bits |
# | 4 | [Activations and recomputation](04_activations.ipynb) | What does it cost to keep less? | a checkpoint that recomputes |
# | 5 | [FLOPs, roofline, MFU](05_flops_roofline_mfu.ipynb) | How long must a training run take at least? | |
# | 6 | [Collectives and the α–β model](06_collectives.ipynb) | How long does an all-reduce take? | a ring and a tree, from messages |
# | 7 | [From DP to DDP](07_ddp.ipynb) | Why is the exchange of gradients almost free? | DDP, with hooks and buckets |
# | 8 | [ZeRO 1, 2, 3](08_zero.ipynb) | Who needs to store what? | ZeRO 1 and 2, with clipping |
# | 9 | [FSDP and YaFSDP](09_fsdp.ipynb) | How do you train what fits on no single GPU? | FSDP |
# | 10 | [Tensor parallelism](10_tensor_parallelism.ipynb) | How far can one matrix be split? | both cuts of a matrix, sequence parallelism, a loss that is cut by words |
# | 11 | [Pipeline parallelism](11_pipelines.ipynb) | Why do GPUs wait, and for how long? | a pipeline for any schedule |
# | 12 | [Experts and long sequences](12_experts_and_long_sequences.ipynb) | What do a trillion parameters cost, if few are used? | experts on many ranks, ring attention |
# | 13 | [3D parallelism and planning](13_3d_planning.ipynb) | Which layout, out of a hundred thousand? | a mesh of ranks |
# | 14 | [Parameter servers and RPC](14_parameter_servers.ipynb) | What if the model is mostly a table? | a parameter server |
# | 15 | [Launchers, frameworks, recovery](15_launchers_and_recovery.ipynb) | What happens when a machine dies? | a launcher, a checkpoint of many ranks |
# | 16 | [The cluster clinic](16_cluster_clinic.ipynb) | Which cable is broken? | a parser of `ibstat`, the first call on which ranks differ |
# | 17 | [Capstone](17_capstone.ipynb) | Can you defend a plan for a 70B model? | streams that share a GPU, an audit of any claim, and a report |
#
# [The glossary](glossary.ipynb) has all terms with their Chinese names.

# %% [markdown]
# ## Conventions
#
# - **GB** is $10^9$ bytes, **GiB** is $2^{30}$ bytes. Never mixed, always written out.
# - **FLOP** is an operation, **FLOP/s** a speed.
# - Bandwidth is per direction: a link that sends 50 GB/s and receives 50 GB/s at once has 50 GB/s. Peak rates are those for dense matrices.
# - Where published tools disagree, the convention is named and is a parameter.
# - A number is either measured in the notebook or has its source beside it.
# - Technical terms come with their Chinese name at first use.
#
# Now open [1 Steps and batches](01_steps_and_batches.ipynb).
