"""Claims of the study notes about memory that are wrong, loose or need a condition.

One test per erratum: the docstring states the claim, the assertions the right value.
"""

import math
from dataclasses import replace

import pytest
from every import every

from course_lib.theory.inputs.job import Job
from course_lib.theory.inputs.layout import Layout
from course_lib.theory.inputs.models import MODELS
from course_lib.theory.inputs.recipe import RECIPES, Recipe
from course_lib.theory.inputs.units import GB, GIB
from course_lib.theory.memory.activations import layer_activation_bytes
from course_lib.theory.memory.peak import fewest_gpus, gpu_memory, training_memory
from course_lib.theory.memory.states import local_parameters, model_states
from course_lib.theory.step.batching import Batching

SEVENTY = MODELS["llama2-70b"]
NOMINAL = 70 * 10**9
NOTES = Recipe(attention="standard", dropout=True, recompute="selective")


def gpt_shaped_seventy():
    """The model whose activations the notes count: 80 layers of 8192 with a GELU MLP of 4h."""
    fields = {"layers": 80, "hidden": 8192, "heads": 64, "ffn": 4 * 8192, "vocab": 32000}
    return type(SEVENTY)(**fields, context=4096)


def test_erratum_15_stages_hold_p_micro_batches_and_not_2p_minus_1():
    """Claim: a pipeline of N stages keeps 2N − 1 activations alive."""
    held = Layout(pp=8, accumulation=64).in_flight(0)[0]
    assert held == 8 != 2 * 8 - 1
    assert Layout(pp=8, accumulation=64, schedule="gpipe").in_flight(0)[0] == 64


def test_erratum_18_states_of_70b_depend_on_the_convention():
    """Claim: 140 + 140 + 840 GB. True of 70e9 with 2 + 2 + 12 bytes; Adam alone is 560."""
    states = model_states(NOMINAL, Recipe())
    optimizer = states.master_copy_bytes + states.optimizer_state_bytes
    assert (states.parameters_bytes, states.gradients_bytes) == (140 * GB, 140 * GB)
    assert optimizer == 840 * GB
    assert states.optimizer_state_bytes == 560 * GB != 840 * GB
    exact = model_states(SEVENTY.parameters().total, Recipe())
    assert exact.model_states_bytes == 1_103_626_371_072
    sizes = [RECIPES[name].bytes_per_parameter for name in ("megatron-18", "accumulate-20")]
    assert sizes == [18, 20]


def test_erratum_19_730_gb_is_a_gelu_model_with_selective_recomputation():
    """Claim: LLaMA-2 70B keeps 4096·8·8192·80·34 = 730 GB. It has SwiGLU, GQA and no dropout."""
    notes = 80 * layer_activation_bytes(
        Job(gpt_shaped_seventy(), NOTES, Layout(micro_batch=8), sequence=4096)
    )
    assert notes == 4096 * 8 * 8192 * 80 * 34 == 730_144_440_320
    llama = training_memory(SEVENTY, Recipe(), 8, 4096).activations_bytes
    # Four norm and matrix inputs, queries, output; keys and values; four tensors of SwiGLU.
    assert llama == 80 * 4096 * 8 * 2 * (6 * 8192 + 2 * 1024 + 4 * 28672) != notes
    everything = Recipe(attention="standard", dropout=True)
    whole = 80 * layer_activation_bytes(
        Job(gpt_shaped_seventy(), everything, Layout(micro_batch=8), sequence=4096)
    )
    assert whole / GB == pytest.approx(4166, abs=1)


def test_erratum_20_24_gpus_are_a_lower_bound():
    """Claim: 1850 GB fit into 24 GPUs of 80 GB, or 78 of 24 GB. Only with perfect sharding."""
    assert fewest_gpus(1850 * GB, 80 * GB) == 24
    assert fewest_gpus(1850 * GB, 24 * GB) == 78
    layout = Layout(dp=24, zero_stage=3)
    real = gpu_memory(Job(SEVENTY, Recipe(recompute="selective"), layout, sequence=4096))
    assert real.total_bytes > 80 * GB  # and that with a micro-batch of one sequence


def test_erratum_21_only_70b_has_80_layers():
    """Claim: LLaMA-2 has 80 layers."""
    sizes = [MODELS[f"llama2-{size}"].layers for size in ("7b", "13b", "70b")]
    assert sizes == [32, 40, 80]


def test_erratum_22_stages_do_not_multiply_activations():
    """Claim: 80 stages keep 160 times the activations. Stage 0 keeps one whole micro-batch."""
    shape = gpt_shaped_seventy()
    held = {
        pp: gpu_memory(
            Job(shape, NOTES, Layout(pp=pp, accumulation=160, micro_batch=8), sequence=4096)
        )
        for pp in (1, 8, 80)
    }
    whole = 730_144_440_320
    assert [bill.activations_bytes for bill in held.values()] == [whole, whole, whole]
    one_layer = layer_activation_bytes(Job(shape, NOTES, Layout(micro_batch=8), sequence=4096))
    assert held[80].activations_bytes == 80 * one_layer != 160 * one_layer
    small = gpu_memory(Job(shape, NOTES, Layout(pp=80, accumulation=160), sequence=4096))
    assert small.activations_bytes == whole // 8  # micro-batch 1: 91 GB


def test_erratum_23_selective_recomputation_drops_the_attention_core():
    """Claim: selective recomputation keeps 8 groups of 10 layers. That is full checkpointing."""
    shape = gpt_shaped_seventy()
    everything = Recipe(attention="standard", dropout=True)
    kept = layer_activation_bytes(Job(shape, NOTES, sequence=4096))
    dropped = layer_activation_bytes(Job(shape, everything, sequence=4096)) - kept
    assert dropped == 5 * shape.heads * 4096**2
    assert kept == 34 * 4096 * shape.hidden
    full = Recipe(attention="standard", dropout=True, recompute="full")
    assert (
        layer_activation_bytes(Job(shape, full, sequence=4096)) == 2 * 4096 * shape.hidden != kept
    )


def test_erratum_24_full_recomputation_keeps_every_layer_s_input():
    """Claim: full recomputation is quadratic, 3240 layers for 80. Each is recomputed once."""
    bill = training_memory(SEVENTY, Recipe(recompute="full"), 1, 4096)
    assert bill.activations_bytes == 80 * 2 * 4096 * 8192  # 80 stored inputs: nothing to redo twice
    again = 80
    assert again != sum(range(1, 81)) == 3240


def test_erratum_25_a_layer_has_less_than_a_billion_parameters():
    """Claim: each of the 80 layers has 1B parameters."""
    layer = SEVENTY.layer_parameters(0).total
    assert layer == 855_654_400
    assert layer != 10**9


def test_erratum_26_gradients_are_shared_within_replicas_only():
    """Claim: 2048 GPUs with 80 stages can all be seen as data parallel. 2048 / 80 is 25.6."""
    with pytest.raises(ValueError, match="not divisible"):
        Batching(samples=10**6, nodes=256, gpus_per_node=8, pp=80)
    layout = Layout(dp=25, pp=80)
    assert layout.world == 2000 != 2048
    assert layout.shard_ranks == 25


def test_erratum_27_gradient_precision_is_a_choice():
    """Claim: a layer's gradients take 4 GB because the optimizer is fp32."""
    sixteen, thirty_two = (
        model_states(10**9, Recipe(gradients=precision)) for precision in ("bf16", "fp32")
    )
    assert (sixteen.gradients_bytes, thirty_two.gradients_bytes) == (2 * GB, 4 * GB)
    assert sixteen.optimizer_state_bytes == thirty_two.optimizer_state_bytes


def test_erratum_34_tensor_ranks_beyond_the_key_value_heads_copy_them():
    """Claim: t is limited by the heads. By the 8 key-value heads of 70B, or those are copied."""
    eight, sixteen = (local_parameters(SEVENTY, Layout(tp=tp)).total for tp in (8, 16))
    one_head_each = 80 * 2 * 128 * 8192
    norms = (2 * 80 + 1) * 8192
    assert 2 * sixteen == eight + one_head_each + norms
    with pytest.raises(ValueError, match="not divisible"):
        Layout(tp=128).check(SEVENTY)


def test_erratum_41_zero_shards_storage():
    """Claim: ZeRO reduces redundant computation. It divides states; activations stay."""
    before, after = (
        gpu_memory(Job(SEVENTY, Recipe(), Layout(dp=64, zero_stage=stage), sequence=4096))
        for stage in (0, 3)
    )
    assert after.model_states_bytes * 64 == before.model_states_bytes
    assert after.activations_bytes == before.activations_bytes


@every(
    ("recipe", "times_the_weights"),
    [
        (Recipe(parameters="fp32", gradients="fp32", master_copy=False), 2),
        (Recipe(master_copy=False), 4),
        (Recipe(), 6),
    ],
)
def test_erratum_42_adamw_is_twice_fp32_weights_only(recipe, times_the_weights):
    """Claim: AdamW takes 8 bytes per parameter, twice the weights. 4 or 6 times bf16 weights."""
    states = model_states(10**9, recipe)
    optimizer = states.optimizer_state_bytes + states.master_copy_bytes
    assert optimizer == times_the_weights * states.parameters_bytes
    assert states.optimizer_state_bytes == 8 * GB


@every(("parameters", "part"), [("fp32", 0.5), ("bf16", 1.0)])
def test_erratum_43_8_bit_adamw_is_half_of_fp32_weights_only(parameters, part):
    """Claim: 8-bit AdamW takes 2 bytes, half the weights. As much as bf16 weights."""
    states = model_states(10**9, Recipe(parameters, optimizer="adamw-8bit", master_copy=False))
    assert states.optimizer_state_bytes == 2 * GB == part * states.parameters_bytes


def test_erratum_44_plain_sgd_has_no_states():
    """Claim: SGD's states are as large as the weights. 0 bytes, or 4 with momentum."""
    plain, momentum = (
        model_states(10**9, Recipe(optimizer=name)).optimizer_state_bytes
        for name in ("sgd", "momentum")
    )
    assert (plain, momentum) == (0, 4 * GB)


def test_erratum_45_the_master_copy_and_the_context_are_missing():
    """Claim: what takes memory is weights, gradients, states and activations."""
    bill = training_memory(MODELS["gpt2-124m"], Recipe(), 1)
    assert bill.master_copy_bytes == 2 * bill.parameters_bytes
    assert GIB / 2 <= bill.overhead_bytes <= 2 * GIB


def test_erratum_48_other_axes_go_beyond_one_sample_per_gpu():
    """Claim: at most as many devices as samples in the batch. True of data parallelism alone."""
    layout = Layout(dp=4, tp=8, pp=4, cp=2, accumulation=4)
    assert layout.global_batch == 16 < layout.world == 256


def test_erratum_51_sharded_ranks_compute_whole_layers():
    """Claim: under FSDP each GPU processes another shard of the model. It gathers full layers."""
    bill = gpu_memory(Job(SEVENTY, Recipe(), Layout(dp=64, zero_stage=3), sequence=4096))
    layer = 2 * SEVENTY.layer_parameters(0).total
    assert bill.gathered_parameters_bytes > 2 * layer > bill.parameters_bytes
    alone = gpu_memory(Job(SEVENTY, Recipe(), sequence=4096))
    assert bill.activations_bytes == alone.activations_bytes  # of its own data


def test_erratum_53_layer_inputs_alone_are_over_10_gb():
    """Claim: checkpointing took activations of 8192 tokens from 110 GB to 5 GB."""
    bill = training_memory(SEVENTY, Recipe(recompute="full"), 2, 4096)
    assert bill.activations_bytes == 10_737_418_240
    assert bill.activations_bytes / GB == pytest.approx(10.74, abs=0.01)
    assert bill.activations_bytes > 5 * GB


def test_erratum_55_sharding_combines_with_the_other_axes():
    """Claim: FSDP is hard to combine with tensor and pipeline parallelism. FSDP2 does, with CP."""
    layout = Layout(dp=8, tp=8, pp=4, cp=2, zero_stage=3, accumulation=8)
    bill = gpu_memory(Job(MODELS["llama3-405b"], Recipe(), layout, sequence=8192), 1)
    local = local_parameters(MODELS["llama3-405b"], layout, 1).total
    assert bill.parameters_bytes == 2 * math.ceil(local / 16)


def test_erratum_57_gpt2_xl_overflows_with_one_sample():
    """Claim: DDP cannot train XL, FSDP can. True there: 24.92 GB of fp32 states, 23.65 GiB free."""
    shape, recipe = MODELS["gpt2-1.5b"], RECIPES["fp32-16"]
    alone = training_memory(shape, recipe, 1)
    assert alone.model_states_bytes == 24_921_779_200 < 23.65 * GIB < alone.total_bytes
    sharded = gpu_memory(Job(shape, recipe, Layout(dp=2, zero_stage=3)))
    assert sharded.total_bytes < 23.65 * GIB
    # The first state of the command has --block_size 12: with it 200 samples fit under DDP, not 7.
    written = replace(recipe, attention="standard", dropout=True)
    many = Job(MODELS["gpt2-774m"], written, Layout(dp=2, micro_batch=200), sequence=12)
    assert gpu_memory(many).total_bytes < 23.65 * GIB
    # In mixed precision with an fp32 master copy the states are no smaller: 16 bytes as well.
    assert training_memory(shape, Recipe(), 1).model_states_bytes == alone.model_states_bytes


def test_erratum_59_adam_keeps_two_moments():
    """Claim: Adam keeps momentum and change. Momentum and variance: two fp32 numbers."""
    assert model_states(1, Recipe(optimizer="adamw")).optimizer_state_bytes == 2 * 4
