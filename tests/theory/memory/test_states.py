"""Model states of one GPU: by hand, published numbers, and each other."""

from dataclasses import replace

import probes
from every import every
from probes import FULL, JOB, PLAIN, ZERO_3, Probe, by_name, values

from course_lib.theory.inputs.job import Job
from course_lib.theory.inputs.layout import Layout
from course_lib.theory.inputs.models import MODELS
from course_lib.theory.inputs.recipe import Recipe
from course_lib.theory.inputs.shape import LatentAttention, TransformerShape
from course_lib.theory.memory.peak import gpu_memory, host_bytes
from course_lib.theory.memory.states import (
    LocalParameters,
    local_parameters,
    model_states,
    sharded_states,
    sharding_buffers,
    update_bytes,
    whole_gradients_stay,
)


@every("tp", [1, 2, 8])
def test_tensor_ranks_split_matrices_and_copy_the_rest(tp):
    shape = MODELS["gpt2-355m"]
    h = shape.hidden
    split = 3 * (h * h + h) + h * h + (4 * h * h + 4 * h) + 4 * h * h  # q, k, v, out, up, down
    copied = 2 * 2 * h + 2 * h  # two norms, and the biases of out and down
    ends = -(-shape.vocab // tp) * h + shape.context * h + 2 * h
    expected = shape.layers * (split // tp + copied) + ends
    assert local_parameters(shape, Layout(tp=tp)).total == expected


def test_tensor_ranks_beyond_the_key_value_heads_hold_a_whole_head_with_its_biases():
    shape = TransformerShape(1, 64, 8, 128, 100, 32, kv_heads=2, mlp="swiglu", biases=True)
    keys_values = 2 * 2 * 8 * (64 + 1)  # keys and values of two heads of 8, with their biases
    copied = 64 + 64 + shape.layer_parameters(0).norms  # biases of the two outputs
    cut = shape.layer_parameters(0).total - copied - keys_values
    held = local_parameters(shape, Layout(tp=4)).layer_dense
    assert held == copied + cut // 4 + keys_values // 2


@every(
    ("places", "copied"),
    [
        # Of 4 ranks: keys and values of one of two heads, 2 · 2 biases, and a quarter of 8 queries.
        ("qkv", 2 * 2 + 8 // 4),
        ("all", 2 * 2 + 8 // 4 + 8),  # and the output's bias, added after the sum
        ("none", 0),
    ],
)
def test_tensor_ranks_hold_the_biases_of_attention_alone(places, copied):
    shape = TransformerShape(1, 8, 4, 16, 40, 8, kv_heads=2, biases=False, attention_biases=places)
    without = replace(shape, attention_biases="none")
    counts = [local_parameters(one, Layout(tp=4)).dense for one in (shape, without)]
    assert counts[0] - counts[1] == copied


def test_tensor_ranks_copy_the_biases_of_latent_attention_s_way_down():
    latent = LatentAttention(q_rank=24, kv_rank=16, nope_dim=8, rope_dim=4, value_dim=12)
    shape = TransformerShape(1, 64, 4, 128, 100, 32, mlp="swiglu", biases=True, mla=latent)
    # To each latent a matrix and a bias, then the biases of the two outputs, and the norms.
    copied = 24 * 65 + (16 + 4) * 65 + 64 + 64 + shape.layer_parameters(0).norms
    whole = shape.layer_parameters(0).total
    assert local_parameters(shape).layer_dense == whole
    half = local_parameters(shape, Layout(tp=2)).layer_dense
    assert half == copied + (whole - copied) // 2


def test_tensor_ranks_copy_norms_and_routers_of_a_layer_with_experts():
    small = TransformerShape(1, 64, 4, 128, 100, 32, norm="rmsnorm", biases=False)
    local = local_parameters(replace(small, experts=4, top_k=1), Layout(tp=2))
    assert local.layer_dense == 2 * 64 + 4 * 64 + 4 * 64 * 64 // 2
    assert local.layer_experts == 4 * 2 * 64 * 128 // 2


def test_zbv_has_one_table_where_both_ends_are_one_stage():
    """Four stages of six layers, each twice three; stage 0 has embedding and head as well."""
    shape = MODELS["gpt2-124m"]
    layout = Layout(pp=2, accumulation=3, schedule="zbv")
    both = [local_parameters(shape, layout, stage) for stage in (0, 1)]
    assert both[0].total + both[1].total == shape.parameters().total, "nothing twice"
    assert both[1].ends_dense == 0 < both[0].ends_dense
    of_1f1b = [
        local_parameters(shape, Layout(pp=2, accumulation=3), stage).total for stage in (0, 1)
    ]
    assert sum(of_1f1b) == shape.parameters().total + shape.vocab * shape.hidden


def test_zero_shards_experts_over_fewer_ranks():
    layout = Layout(dp=16, ep=8, zero_stage=3)
    states = sharded_states(LocalParameters(dense=1600, experts=800), Recipe(), layout)
    assert states.parameters_bytes == 2 * (1600 / 16 + 800 / 2)


def test_offloaded_states_are_in_the_host_s_memory():
    shape, layout = MODELS["llama2-7b"], Layout(dp=8, zero_stage=2)
    recipe = Recipe(offload="optimizer")
    states = sharded_states(local_parameters(shape, layout), recipe, layout)
    assert states.optimizer_state_bytes == states.master_copy_bytes == 0
    assert host_bytes(Job(shape, recipe, layout)) == 12 * shape.parameters().total / 8
    assert host_bytes(Job(shape, Recipe(), layout)) == 0


LOCAL = LocalParameters(
    1000, 400, layer_dense=90, layer_experts=40, ends_dense=100, table=50, head_dense=30
)


def buffers(recipe=None, **layout):
    """Bytes of gathered weights, whole gradients and buckets."""
    return tuple(sharding_buffers(LOCAL, recipe or Recipe(), Layout(**layout)).values())


def test_what_sharding_gathers_for_a_moment():
    two_layers_and_ends, and_head = 2 * (2 * 130 + 100), 2 * (2 * 130 + 30)
    assert buffers() == (0, 0, 0)
    assert buffers(dp=4) == (0, 0, 2 * 1400)  # DDP sends copies of the gradients
    assert buffers(dp=4, zero_stage=1) == (0, 0, 0)
    assert buffers(dp=4, zero_stage=2) == (0, and_head, 0)
    assert buffers(dp=4, zero_stage=3) == (two_layers_and_ends, and_head, 0)


def test_large_tables_are_most_at_the_end_of_the_backward_pass():
    """The embedding's gradient beside the head's; of a tied table both and their sum."""
    ends = {"layer_dense": 10, "table": 50, "head_dense": 51}
    untied, tied = (
        LocalParameters(500, ends_dense=101 - shared, tied_dense=shared, **ends)
        for shared in (0, 50)
    )
    for stage, held in ((2, 0), (3, 2 * 2 * 10)):
        layout = Layout(dp=4, zero_stage=stage)
        found = sharding_buffers(tied, Recipe(), layout)["gathered_gradients_bytes"]
        assert found == 2 * (50 + 51 + 50) + 2 * 10 - held
    fp32 = sharding_buffers(untied, Recipe(gradients="fp32"), Layout(dp=4, zero_stage=3))
    assert sum(fp32.values()) == 101 * (2 + 4)  # the root's weights are free by then


def test_weights_that_are_not_resharded_are_all_gathered_at_once():
    assert buffers(dp=4, zero_stage=3, reshard=False)[0] == 2 * 1400


def test_gradients_that_add_up_are_whole():
    """FSDP's accumulation without reduction, in the precision of the gradients."""
    sum_up = {"dp": 4, "zero_stage": 3, "reduce": "update", "accumulation": 2}
    assert buffers(**sum_up)[1] == 2 * 1400
    assert buffers(Recipe(gradients="fp32"), **sum_up)[1] == 4 * 1400
    assert buffers(**sum_up | {"accumulation": 1}) == buffers(dp=4, zero_stage=3)


GROUPED = Layout(
    dp=4,
    pp=2,
    zero_stage=2,
    accumulation=8,
    schedule="interleaved",
    virtual_stages=2,
    reduce="group",
)


def test_groups_of_micro_batches_leave_one_chunk_of_whole_gradients():
    """Of four chunks of Mixtral the fullest is that with the embedding, or the head."""
    shape, layout, once = MODELS["mixtral-8x7b"], GROUPED, replace(GROUPED, reduce="update")
    layer, ends = shape.layer_parameters(0).total, shape.embedding_parameters().total
    for stage in (0, 1):
        local = local_parameters(shape, layout, stage)
        assert local.chunk_dense + local.chunk_experts == 8 * layer + ends + shape.hidden * stage
        one, both = (
            sharding_buffers(local, Recipe(gradients="fp32"), its)["gathered_gradients_bytes"]
            for its in (layout, once)
        )
        assert one == 4 * (8 * layer + ends + shape.hidden * stage)
        assert both == one + 4 * 8 * layer
        # Where each rank has experts of its own, nobody sends their gradients: the rest is whole.
        alone = replace(layout, ep=4)
        local = local_parameters(shape, alone, stage)
        found = sharding_buffers(local, Recipe(gradients="fp32"), alone)
        dense = layer - shape.layer_parameters(0).experts
        whole = 8 * dense + ends + shape.hidden * stage
        assert found["gathered_gradients_bytes"] == 4 * whole
        one_rank = sharding_buffers(local, Recipe(), replace(layout, dp=1))
        assert one_rank["gathered_gradients_bytes"] == 0


def test_a_shard_group_shards_as_few_ranks_would():
    """Hybrid sharding: 8 ranks in 2 groups keep what 4 ranks keep."""
    recipe = Recipe()
    for stage in (1, 2, 3):
        hybrid = Layout(dp=8, zero_stage=stage, shard_group=4)
        assert sharded_states(LOCAL, recipe, hybrid) == sharded_states(
            LOCAL, recipe, Layout(dp=4, zero_stage=stage)
        )
    assert buffers(dp=8, zero_stage=3, shard_group=4) == buffers(dp=4, zero_stage=3)


def test_an_update_that_is_not_fused_makes_copies():
    """4 bytes of an fp32 gradient, and 4 more of a list of denominators."""

    def each(update, **recipe):
        return update_bytes(LOCAL, Recipe(update=update, **recipe), Layout()) / LOCAL.total

    assert [each(update) for update in ("fused", "copied", "foreach")] == [0, 4, 8]
    fp32 = {"parameters": "fp32", "gradients": "fp32", "master_copy": False}
    assert [each(update, **fp32) for update in ("copied", "foreach")] == [0, 4]
    assert each("foreach", optimizer="adamw-bf16", master_copy=False) == 2
    assert each("copied", gradient_buffer=True) == 0
    assert each("foreach", offload="optimizer") == 0


def test_experts_without_a_second_holder_are_never_gathered_or_sent():
    assert buffers(dp=4, ep=4) == (0, 0, 2 * 1000)
    assert buffers(dp=4, ep=4, zero_stage=3)[0] == 2 * (2 * 90 + 100)


def test_yafsdp_has_two_buffers_of_each_kind():
    # The ends are not kept: an embedding passes through the buffers as a layer does.
    yafsdp = Recipe(gathering="yafsdp")
    assert buffers(yafsdp, dp=4, zero_stage=3) == (2 * 2 * 130, 2 * 2 * 130, 0)
    wide = Recipe(gathering="yafsdp", gradients="fp32")
    assert buffers(wide, dp=4, zero_stage=3)[1] == 2 * 2 * 130 + 4 * 130
    table = replace(LOCAL, table=200)
    found = sharding_buffers(table, yafsdp, Layout(dp=4, zero_stage=3))
    assert found["gathered_parameters_bytes"] == 2 * 2 * 200


def test_options_of_data_parallelism_change_its_buffers():
    view = Recipe(gradient_as_bucket_view=True)
    assert buffers(view, dp=4) == (0, 0, 0)
    assert buffers(Recipe(gathered_units=3), dp=4, zero_stage=3)[0] == 2 * (3 * 130 + 100)


STAGE = local_parameters(probes.MIXTURE)
# --- breakdown ---


BATCHES_OF_TWO = replace(ZERO_3, zero_stage=2, micro_batch=2)
BILLS = [
    gpu_memory(replace(JOB, recipe=PLAIN)),
    gpu_memory(replace(JOB, recipe=Recipe(gradient_buffer=True), layout=ZERO_3), overhead_bytes=1),
    gpu_memory(
        replace(JOB, recipe=replace(FULL, dropout=True), layout=BATCHES_OF_TWO), overhead_bytes=2
    ),
    gpu_memory(replace(JOB, recipe=Recipe(update="foreach"), layout=Layout())),
]


REFUSED = [(lambda: model_states(7e9, Recipe()), "parameters must be a whole number")]
PROBES = by_name(
    Probe(local_parameters, {"shape": probes.DENSE, "layout": probes.TWO_STAGES}),
    Probe(
        update_bytes,
        {"local": STAGE, "layout": probes.ZERO_3, "recipe": Recipe(update="foreach")},
    ),
    Probe(
        whole_gradients_stay,
        {"recipe": Recipe(), "layout": probes.ZERO_3},
        {
            "recipe": Recipe(gathering="yafsdp"),
            "layout": replace(probes.ZERO_3, accumulation=2, reduce="update"),
        },
    ),
    Probe(
        LocalParameters,
        dict.fromkeys(values(STAGE), 1000),
        dict.fromkeys(values(STAGE), 2000) | {"table": 5000, "tied_dense": 9000},
        see=lambda local: (
            [
                (
                    sharded_states(local, recipe, probes.ZERO_3),
                    sharding_buffers(local, recipe, probes.ZERO_3),
                )
                for recipe in (Recipe(), Recipe(gathering="yafsdp"))
            ]
            + [sharding_buffers(local, Recipe(), GROUPED)]
        ),
    ),
)
RECORDS = {"MemoryBreakdown": BILLS}
