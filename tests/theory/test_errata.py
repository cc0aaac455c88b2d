"""Claims of five study notes that are wrong, loose or need a condition, and what is right.

A row: number, note, verdict, claim, calls of the library, and their right values. Verdicts are W,
wrong; D, doubtful or misleading; C, right on a condition; OK, arithmetic that holds. What is wrong
about names and dates, and nothing can be computed of, is not here.
"""

from dataclasses import replace

import pytest
from every import every

from course_lib.theory.compute import budget, flops
from course_lib.theory.inputs.hardware import HDR, PCIE4, Cluster, accelerator
from course_lib.theory.inputs.job import Job
from course_lib.theory.inputs.layout import Layout
from course_lib.theory.inputs.models import MODELS
from course_lib.theory.inputs.recipe import RECIPES, Recipe
from course_lib.theory.inputs.shape import TransformerShape
from course_lib.theory.inputs.units import GB, format_flop
from course_lib.theory.memory.activations import layer_activation_bytes
from course_lib.theory.memory.peak import fewest_gpus, gpu_memory, training_memory
from course_lib.theory.memory.states import local_parameters, model_states
from course_lib.theory.network import collectives
from course_lib.theory.network.bucket_timeline import ddp_buckets, gradient_syncs
from course_lib.theory.network.step_traffic import step_traffic
from course_lib.theory.pipelines import bubble
from course_lib.theory.pipelines.simulation import timeline
from course_lib.theory.step import batching
from course_lib.theory.step.batching import Batching

SEVENTY, MIXTRAL, XL = MODELS["llama2-70b"], MODELS["mixtral-8x7b"], MODELS["gpt2-1.5b"]
GPT_SEVENTY = TransformerShape(80, 8192, 64, 4 * 8192, 32000, 4096)  # whose activations they count
EVERYTHING = Recipe(attention="standard", dropout=True)
NOTES = replace(EVERYTHING, recompute="selective")
H100, H200, RTX4090 = map(accelerator, ("H100-SXM", "H200-SXM", "RTX4090"))
LAYER_FLOP = 6 * 8 * 4096 * 10**9
SEVENTY_FLOP = flops.training_flops(SEVENTY, 1, 4096)
AGAIN_FLOP = flops.training_flops(SEVENTY, 1, 4096, recompute="full")
FOUR_BATCHES = {"samples": 10**6, "micro_batch": 4, "accumulation": 8, "gpus_per_node": 8}


def layer_bytes(recipe):
    return layer_activation_bytes(Job(GPT_SEVENTY, recipe, Layout(), sequence=4096))


def bill(recipe, layout, shape=SEVENTY):
    return gpu_memory(Job(shape, recipe, layout, sequence=4096))


def states(**recipe):
    return model_states(10**9, Recipe(**recipe))


def optimizer_over_weights(**recipe):
    its = states(**recipe)
    return (its.optimizer_state_bytes + its.master_copy_bytes) / its.parameters_bytes


def keys_and_values(tp):
    job = Job(SEVENTY, Recipe(), Layout(tp=tp, cp=2), Cluster(H100, 4), sequence=4096)
    sent = step_traffic(job).collectives
    return sum(item.size_bytes for item in sent if item.what == "keys and values")


def in_flight(schedule, micro_batches=32):
    return timeline(schedule, 8, micro_batches).in_flight(0)


ROWS = [
    (1, "004", "D", "6 is the FLOP per token: per token and parameter, without scores",
     lambda: (SEVENTY_FLOP.model_flop - SEVENTY_FLOP.scores_flop) / 4096,
     6.0 * (SEVENTY.parameters().total - SEVENTY.parameters().embedding)),
    (2, "004", "W", "a computation is 196 Tflops: TFLOP/s is a rate",
     lambda: (format_flop(LAYER_FLOP), flops.six_nd(1e9, 8 * 4096)), ("196.6 TFLOP", LAYER_FLOP)),
    (3, "004", "OK", "384 FLOP per byte, so that 330 TFLOP/s need 859 GB/s",
     lambda: (collectives.matrix_intensity(8192, 64), collectives.ridge(330e12, 859.4e9)),
     (384, 384.0)),
    (4, "004", "W", "divide by the heads for memory: it is for the work on each received byte",
     lambda: collectives.matrix_intensity(8192, 64, element_bytes=4), 3 * 2 * 8192 / 64 / 4),
    (5, "004", "D", "tensor parallelism does 6h/2t FLOP per byte: a layer 4.5h/(t-1)",
     lambda: (collectives.matrix_intensity(8192, 8), collectives.layer_intensity(8192, 8)),
     (3072, 4.5 * 8192 / 7)),
    (6, "004", "W", "a 4090 computes 330 TFLOP/s: 165.2 where it adds up in fp32",
     lambda: RTX4090.peak_flop_per_s, 165.2e12),
    (7, "004", "C", "an H100 computes 989 TFLOP/s: dense, SXM; measured 794.5",
     lambda: (H100.peak_flop_per_s, Cluster(H100).matmul_flop_per_s), (989e12, 794.5e12)),
    (8, "004", "W", "PCIe moves 32 and NVLink 900 GB/s: the second is both ways, so 2198 FLOP/byte",
     lambda: (H100.inside.bytes_per_s, collectives.ridge(989e12, H100.inside.bytes_per_s)),
     (450e9, 2198.0)),
    (9, "004", "W", "24576/t >= 1100 gives t <= 11: it gives 22.3; 450 GB/s give 11.18",
     lambda: (collectives.matrix_tp_reach(8192, 1100.0, 1.0),
              collectives.matrix_tp_reach(8192, 989e12, 450e9)), (22.34, 11.18)),
    (10, "004", "C", "t <= 2.4 on a 4090: of one matrix; of a layer 4 or 8, and 17 on an H100",
     lambda: (collectives.matrix_tp_reach(8192, 330e12, 32e9),
              *(collectives.layer_tp_reach(8192, *sizes)
                for sizes in ((330e12, 32e9), (165.2e12, 31.5e9), (989e12, 450e9)))),
     (2.383, 4, 8, 17)),
    (11, "004", "W", "the H200 has more FLOP per byte sent: as many; those of its memory fall",
     lambda: (H200.peak_flop_per_s / H200.inside.bytes_per_s, H100.ridge_flop_per_byte,
              H200.ridge_flop_per_byte), (989.4e12 / 450e9, 295.3, 206.1)),
    (13, "004", "D", "an all-reduce broadcasts: each rank sends 2(n-1)/n of the size",
     lambda: [collectives.sent_bytes(name, 4e9, 8)
              for name in ("all-reduce", "reduce-scatter", "all-gather")], [7e9, 3.5e9, 3.5e9]),
    (14, "004", "D", "a mini-batch is one pass of one GPU: 8 micro-batches on each of 16 GPUs",
     lambda: Batching(**FOUR_BATCHES, nodes=2).global_batch, 512),
    (15, "004", "W", "a pipeline of N stages keeps 2N - 1 activations: N, or all under GPipe",
     lambda: (in_flight("1f1b"), in_flight("gpipe"), in_flight("1f1b", 3)), (8, 32, 3)),
    (16, "004", "W", "as many batches as layers fill a pipeline: 80 stages then wait half the time",
     lambda: (timeline("1f1b", 80, 80).bubble_over_ideal, bubble.bubble_over_ideal(80, 800)),
     (79 / 80, 79 / 800)),
    (17, "004", "D", "big batches hurt: only beyond the critical one",
     lambda: [batching.batch_cost(part, 1.0).samples for part in (0.1, 1.0, 100.0)],
     [1.1, 2, 101.0]),
    (18, "004", "C", "70B take 140 + 140 + 840 GB: 70e9 would, with 12 bytes, 8 of them Adam's",
     lambda: (model_states(70 * 10**9, Recipe()).model_states_bytes, states().parameters_bytes,
              states().optimizer_state_bytes,
              model_states(SEVENTY.parameters().total, Recipe()).model_states_bytes),
     (1120 * GB, 2 * GB, 8 * GB, 1_103_626_371_072)),
    (19, "004", "C", "activations of 70B take 730 GB: a GPT's would; LLaMA's are others",
     lambda: (80 * 8 * layer_bytes(NOTES),
              training_memory(SEVENTY, Recipe(), 8, 4096).activations_bytes,
              80 * 8 * layer_bytes(EVERYTHING)),
     (730_144_440_320, 80 * 4096 * 8 * 2 * (6 * 8192 + 2 * 1024 + 4 * 28672), 4166.0 * GB)),
    (20, "004", "C", "1850 GB fit into 24 GPUs: a lower bound, one sequence is too much",
     lambda: (fewest_gpus(1850 * GB, 80 * GB), fewest_gpus(1850 * GB, 24 * GB),
              bill(Recipe(recompute="selective"), Layout(dp=24, zero_stage=3)).total_bytes > 8e10),
     (24, 78, True)),
    (21, "004", "D", "LLaMA-2 has 80 layers: the 70B model",
     lambda: [MODELS[f"llama2-{size}"].layers for size in ("7b", "13b", "70b")], [32, 40, 80]),
    (22, "004", "W", "80 stages hold 160 times the activations: as much as one model, whatever p",
     lambda: [bill(NOTES, Layout(pp=pp, accumulation=160), GPT_SEVENTY).activations_bytes
              for pp in (1, 8, 80)], [80 * 34 * 4096 * 8192] * 3),
    (23, "004", "W", "selective recomputation keeps 8 groups of layers: all but the scores",
     lambda: (layer_bytes(NOTES), layer_bytes(EVERYTHING) - layer_bytes(NOTES)),
     (34 * 4096 * 8192, 5 * 64 * 4096**2)),
    (24, "004", "W", "full recomputation repeats 3240 layers: each once, a third more work",
     lambda: (AGAIN_FLOP.recompute_flop * 3 + AGAIN_FLOP.head_flop,
              flops.six_nd(7e10, 1, "full") / flops.six_nd(7e10, 1)),
     (AGAIN_FLOP.model_flop, 4 / 3)),
    (25, "004", "D", "a layer has 1B parameters: 0.856",
     lambda: SEVENTY.layer_parameters(0).total, 855_654_400),
    (26, "004", "W", "2048 GPUs are all data parallel: 80 stages leave 25 replicas, of 2000 GPUs",
     lambda: (Layout(dp=25, pp=80).world, Layout(dp=25, pp=80).shard_ranks), (2000, 25)),
    (27, "004", "D", "fp32 optimizers have fp32 gradients: their precision is a choice",
     lambda: [states(gradients=name).gradients_bytes for name in ("bf16", "fp32")],
     [2 * GB, 4 * GB]),
    (28, "004", "OK", "196.6 TFLOP take 0.596 s at 330 TFLOP/s; at the 4090's own peak 1.19",
     lambda: [budget.training_run(LAYER_FLOP, 1, rate).time_s
              for rate in (330e12, RTX4090.peak_flop_per_s)], [0.596, 1.19]),
    (29, "004", "D", "a card of 200 Gb/s matches PCIe 4.0: it has 78 % of the nominal 32 GB/s",
     lambda: (HDR.bytes_per_s / 32e9, HDR.bytes_per_s < PCIE4.bytes_per_s), (0.78125, True)),
    (30, "004", "D", "16384 sequences are ordinary: 16 times LLaMA-2's 4M tokens",
     lambda: Batching(10**6, 16384, sequence=SEVENTY.context).tokens_per_batch, 16 * 4 * 2**20),
    (31, "004", "W", "global batch = accumulation · GPUs · micro-batch: divided by tp · pp · cp",
     lambda: Batching(**FOUR_BATCHES, nodes=8, tp=8, pp=4).global_batch, 8 * 64 * 4 // 32),
    (32, "004", "OK", "1000 samples in batches of 10: 100 updates, or 200 micro-steps of 5",
     lambda: (Batching(1000, 10).epoch().updates,
              Batching(1000, 5, accumulation=2).epoch().micro_steps), (100, 200)),
    (33, "004", "W", "accumulation makes fewer steps: fewer updates, the last of them short",
     lambda: [(it.micro_steps, it.updates, it.last_window)
              for it in (Batching(1010, 5, accumulation=n).epoch() for n in (1, 4))],
     [(202, 202, 1), (202, 51, 2)]),
    (34, "004", "C", "tensor parallelism splits by heads: by key-value heads, then it copies",
     lambda: (keys_and_values(4) / keys_and_values(8), keys_and_values(16) / keys_and_values(8)),
     (2, 1)),
    (35, "004", "D", "a smaller batch needs a smaller rate: in proportion, or by its root for Adam",
     lambda: [batching.scaled_learning_rate(0.1, 256, 64, rule) for rule in ("linear", "sqrt")],
     [0.025, 0.05]),
    (36, "000", "W", "DDP is like DataParallel: it sends 5 buckets of 25 MiB",
     lambda: len(ddp_buckets([2**20] * 100)), 5),
    (37, "000", "D", "workers sum from time to time: at every update",
     lambda: [gradient_syncs(320, n, no_sync=True) for n in (1, 4, 32)], [320, 80, 10]),
    (38, "000", "W", "epoch = batch · iterations: of all ranks, the tail dropped or filled up",
     lambda: [(it.updates, it.dropped, it.repeated)
              for it in (Batching(1003, 5, accumulation=2, gpus_per_node=4, drop_last=drop).epoch()
                         for drop in (True, False))], [(25, 3, 0), (26, 0, 1)]),
    (41, "000", "D", "ZeRO saves computing: storage; stage 3 sends half as much again",
     lambda: [collectives.zero_volume(1.0, stage) for stage in (0, 1, 2, 3)], [2, 2, 2, 3]),
    (42, "000", "C", "AdamW is twice the weights: of fp32; of bf16 4 times, 6 with a master copy",
     lambda: (optimizer_over_weights(parameters="fp32", master_copy=False),
              optimizer_over_weights(master_copy=False), optimizer_over_weights()), (2, 4, 6)),
    (43, "000", "C", "8-bit AdamW is half the weights: of fp32; as much as bf16",
     lambda: [optimizer_over_weights(parameters=name, optimizer="adamw-8bit", master_copy=False)
              for name in ("fp32", "bf16")], [0.5, 1]),
    (44, "000", "W", "SGD needs as much as the weights: nothing, or 4 bytes with momentum",
     lambda: [states(optimizer=name).optimizer_state_bytes for name in ("sgd", "momentum")],
     [0, 4 * GB]),
    (45, "000", "D", "states and activations are all: the master copy is missing",
     lambda: states().master_copy_bytes, 4 * GB),
    (46, "000", "W", "functional languages save temporaries: recomputing does",
     lambda: layer_bytes(replace(EVERYTHING, recompute="full")), 2 * 4096 * 8192),
    (48, "000", "D", "as many devices as samples: other axes go beyond",
     lambda: (Layout(dp=4, tp=8, pp=4, cp=2, accumulation=4).global_batch,
              Layout(dp=4, tp=8, pp=4, cp=2, accumulation=4).world), (16, 256)),
    (51, "001", "D", "each GPU processes another shard: it gathers whole layers",
     lambda: (bill(Recipe(), Layout(dp=64, zero_stage=3)).gathered_parameters_bytes
              > 4 * SEVENTY.layer_parameters(0).total), True),
    (52, "001", "D", "26 % faster: 26.5 % less time, 36 % more throughput",
     lambda: (budget.saved_fraction(9.76, 7.17), budget.throughput_gain(9.76, 7.17)),
     (0.2654, 0.3612)),
    (53, "001", "W", "checkpointing leaves 5 GB of 8192 tokens: the layers' inputs are 10.7",
     lambda: training_memory(SEVENTY, Recipe(recompute="full"), 2, 4096).activations_bytes,
     10_737_418_240),
    (54, "001", "D", "150 GPUs cost 0.5 to 1.5 million a month: 0.22 at 2 USD an hour",
     lambda: budget.cost(150 * 730, 2.0), 219_000),
    (55, "001", "D", "FSDP is hard to combine: a stage's part of a layer, over dp · cp ranks",
     lambda: bill(Recipe(), Layout(dp=8, tp=8, pp=4, cp=2, zero_stage=3)).parameters_bytes,
     2.0 * local_parameters(SEVENTY, Layout(tp=8, pp=4)).total / 16),
    (56, "002", "W", "GPT-2 Large has 762M parameters",
     lambda: [MODELS[name].parameters().total for name in ("gpt2-774m", "gpt2-1.5b")],
     [774_030_080, 1_557_611_200]),
    (57, "002", "D", "DDP cannot train XL: 24.92 GB of states exceed 23.65 GiB; mixed as well",
     lambda: [training_memory(XL, recipe, 1).model_states_bytes
              for recipe in (RECIPES["fp32-16"], Recipe())], [24_921_779_200] * 2),
    (58, "002", "D", "model parallelism is deprecated: it pays for 17 GPUs on NVLink",
     lambda: collectives.layer_tp_reach(8192, H100.peak_flop_per_s, H100.inside.bytes_per_s), 17),
    (59, "003", "W", "Adam keeps momentum and change: two moments, of 4 bytes each",
     lambda: model_states(1, Recipe(optimizer="adamw")).optimizer_state_bytes, 8),
    (60, "003", "W", "model parallelism holds copies: parts",
     lambda: [local_parameters(SEVENTY, one).total for one in (Layout(dp=8), Layout(tp=8))],
     [SEVENTY.parameters().total, SEVENTY.parameters().total / 8.0]),
    (61, "003", "D", "experts are parallelism: only spread over ranks",
     lambda: [local_parameters(MIXTRAL, one).experts for one in (Layout(), Layout(dp=8, ep=8))],
     [MIXTRAL.parameters().experts, MIXTRAL.parameters().experts // 8]),
]  # fmt: skip


def near(right):
    """Texts and whole numbers exactly, other numbers to a thousandth."""
    if isinstance(right, list | tuple):
        return type(right)(map(near, right))
    return pytest.approx(right, rel=1e-3) if isinstance(right, float) else right


@every(("number", "note", "verdict", "claim", "call", "right"), ROWS)
def test_a_claim_is_set_right(number, note, verdict, claim, call, right):
    assert call() == near(right)
    assert note in {"000", "001", "002", "003", "004"} and verdict in {"W", "D", "C", "OK"}


def test_no_claim_is_here_twice():
    assert sorted({row[0] for row in ROWS}) == [row[0] for row in ROWS]
