"""Collectives of a step against timelines and the totals of the papers.

tests/rehearsal compares them with what torch sends.
"""

from collections import Counter
from dataclasses import replace

import pytest
from every import every
from probes import JOB, LLAMA_LIKE, Probe, by_name

from course_lib.theory.inputs import Cluster, Job, Layout, Recipe, TransformerShape
from course_lib.theory.inputs.hardware import accelerator
from course_lib.theory.inputs.models import model
from course_lib.theory.inputs.schedule_rules import SCHEDULES
from course_lib.theory.memory.states import local_parameters
from course_lib.theory.network import collectives
from course_lib.theory.network.step_traffic import step_traffic
from course_lib.theory.network.traffic import CommunicationPolicy
from course_lib.theory.pipelines.simulation import pipeline_trace, timeline

H100 = accelerator("H100-SXM")
SHAPE = TransformerShape(
    layers=8, hidden=512, heads=8, kv_heads=4, ffn=1024, vocab=1000, context=256, **LLAMA_LIKE,
)  # fmt: skip
EXPERTS = replace(SHAPE, experts=8, top_k=2, shared_experts=1, expert_ffn=256, dense_layers=2)
SEQUENCE = 256


def traffic(layout, shape=SHAPE, recipe=None, nodes=16, **more):
    cluster = Cluster(H100, nodes=nodes)
    job = Job(shape, recipe or Recipe(), layout, cluster, sequence=SEQUENCE)
    return step_traffic(job, **more)


def entry(result, axis, what, operation=None):
    """The one entry of that name."""
    found = [
        item
        for item in result.collectives
        if (item.axis, item.what) == (axis, what) and operation in (None, item.operation)
    ]
    assert len(found) == 1, [(item.axis, item.what, item.operation) for item in found]
    return found[0]


# --- totals of the papers -------------------------------------------------------------------------


def test_data_parallelism_sends_two_or_three_times_the_parameters():
    """All stages of ZeRO; stage 3 keeps the ends, and gathers once if it does not reshard."""
    local = local_parameters(SHAPE, Layout())
    volumes = [collectives.zero_volume(2 * local.total, stage, ranks=8) for stage in range(4)]
    sent = [traffic(Layout(dp=8, zero_stage=stage)).bytes_by_axis["dp"] for stage in range(4)]
    kept = collectives.sent_bytes("all-gather", 2 * local.ends_dense, 8)
    assert sent == pytest.approx([*volumes[:3], volumes[3] - kept])
    no_reshard = traffic(Layout(dp=8, zero_stage=3, reshard=False, accumulation=4, reduce="update"))
    assert no_reshard.total_bytes == pytest.approx(volumes[2])


def test_hybrid_sharding_reduces_between_its_groups():
    local = local_parameters(SHAPE, Layout())
    result = traffic(Layout(dp=8, zero_stage=3, shard_group=4))
    four = traffic(Layout(dp=4, zero_stage=3))
    between = collectives.sent_bytes("all-reduce", 2 * local.total / 4, 2)
    assert result.total_bytes == pytest.approx(four.total_bytes + between)


def test_accumulation_costs_zero_2_and_3_but_not_ddp():
    def sent(stage, accumulation):
        return traffic(Layout(dp=8, zero_stage=stage, accumulation=accumulation)).total_bytes

    assert sent(0, 4) == sent(0, 1)
    assert sent(1, 4) == sent(1, 1)
    assert sent(2, 4) == pytest.approx(2.5 * sent(2, 1))  # 4 of gradients, 1 of parameters
    assert sent(3, 4) == pytest.approx(4 * sent(3, 1))


@every("zero_stage", [0, 1, 2, 3])
@every(("group", "groups"), [(None, 4), (3, 3), (4, 2), (8, 1)])
def test_groups_of_micro_batches_exchange_gradients_as_often_as_there_are_groups(
    zero_stage, group, groups
):
    """Between one exchange per update and one per micro-batch."""
    layout = Layout(
        dp=4, pp=2, zero_stage=zero_stage, accumulation=8,
        schedule="interleaved", virtual_stages=2, group=group,
    )  # fmt: skip

    def sent(reduce):
        entries = traffic(replace(layout, reduce=reduce)).collectives
        return sum(it.total_bytes for it in entries if it.axis == "dp" and it.kind == "gradients")

    assert sent("group") == pytest.approx(groups * sent("update"))
    assert sent("micro-batch") == pytest.approx(8 * sent("update"))


@every("sequence_parallel", [False, True])
def test_tensor_parallel_layers_send_narayanans_bytes(sequence_parallel):
    layout = Layout(
        tp=4, micro_batch=2, accumulation=3, sequence_parallel=sequence_parallel, keep_gathered=True
    )
    result = traffic(layout)
    ends = {"embedding", "head", "loss"}
    sent = sum(item.total_bytes for item in result.collectives if item.what not in ends)
    each = collectives.tensor_parallel_bytes(2, SEQUENCE, SHAPE.hidden, 4)
    assert sent == pytest.approx(SHAPE.layers * 3 * each)


def test_sequence_parallelism_that_gathers_again_sends_more_and_hides_it():
    kept = traffic(Layout(tp=4, sequence_parallel=True, keep_gathered=True))
    again = traffic(Layout(tp=4, sequence_parallel=True))
    assert sum(again.waited_by_axis.values()) == pytest.approx(kept.seconds)
    # Two more all-gathers a layer, one for the head: each half of an all-reduce.
    size = SEQUENCE * SHAPE.hidden * 2
    extra = (2 * SHAPE.layers + 1) * collectives.sent_bytes("all-gather", size, 4)
    assert again.total_bytes == pytest.approx(kept.total_bytes + extra)


def test_full_recomputation_repeats_the_forward_pass():
    def calls(recompute):
        return entry(traffic(Layout(tp=4), recipe=Recipe(recompute=recompute)), "tp", "MLP").count

    assert calls("full") == 1.5 * calls("none")
    assert calls("selective") == calls("none")


def test_a_split_vocabulary_costs_at_the_ends():
    """Forward at the embedding, backward at the head, and three sums of a number per token."""
    first = traffic(Layout(tp=2, pp=2, accumulation=4, micro_batch=2))
    last = traffic(Layout(tp=2, pp=2, accumulation=4, micro_batch=2), stage=1)
    assert entry(first, "tp", "embedding").count == entry(last, "tp", "head").count == 4
    assert not {"head", "loss"} & {item.what for item in first.collectives}
    loss = entry(last, "tp", "loss")
    assert (loss.count, loss.size_bytes) == (3 * 4, 2 * SEQUENCE * 4)


@every(("schedule", "virtual"), [(name, 1 + (name == "interleaved")) for name in SCHEDULES])
def test_pipeline_sends_are_those_of_the_timeline(schedule, virtual):
    layout = Layout(pp=4, accumulation=8, schedule=schedule, virtual_stages=virtual)
    trace = pipeline_trace(timeline(schedule, 4, 8, virtual))
    sent = Counter((event.who, event.what) for event in trace)
    for stage in range(4):
        result = traffic(layout, stage=stage)
        for what in ("activations", "gradients"):
            found = [item for item in result.collectives if (item.axis, item.what) == ("pp", what)]
            assert sum(item.count for item in found) == sent[stage, what]
            assert all(item.sent_bytes == SEQUENCE * SHAPE.hidden * 2 for item in found)


def test_pipeline_copies_of_parameters():
    tied, layout = replace(SHAPE, tied_embeddings=True), Layout(pp=4, accumulation=8)
    both = entry(traffic(layout, shape=tied), "pp", "tied embedding")
    assert both.size_bytes == 1000 * 512 * 2
    one_table = replace(layout, pp=2, schedule="zbv")
    for result in (traffic(layout, shape=tied, stage=1), traffic(one_table, shape=tied)):
        assert "tied embedding" not in {item.what for item in result.collectives}
    twice = replace(layout, schedule="dualpipe")
    copies = entry(traffic(twice), "pp", "gradients of both copies")
    assert copies.size_bytes == 2 * local_parameters(SHAPE, twice).total
    assert copies.ranks == 2


def test_context_ring_sends_what_gathers_would():
    layout = Layout(cp=4, micro_batch=2, accumulation=3)
    result = traffic(layout)
    # Keys and values of the whole sequence, gathered in both passes; gradients reduce-scattered.
    size = 2 * SEQUENCE * 2 * SHAPE.kv_width * 2
    gathers = 2 * collectives.sent_bytes("all-gather", size, 4)
    scatters = collectives.sent_bytes("reduce-scatter", size, 4)
    assert result.bytes_by_axis["cp"] == pytest.approx(3 * SHAPE.layers * (gathers + scatters))
    assert "dp" in result.bytes_by_axis  # the ranks of a context ring hold the same parameters
    selective = traffic(layout, recipe=Recipe(recompute="selective")).bytes_by_axis["cp"]
    assert selective == pytest.approx(3 * SHAPE.layers * (gathers * 1.5 + scatters))


def test_grouped_and_latent_attention_change_the_ring():
    grouped = traffic(Layout(cp=2)).bytes_by_axis["cp"]
    full = traffic(Layout(cp=2), shape=replace(SHAPE, kv_heads=8)).bytes_by_axis["cp"]
    # With more tensor-parallel ranks than key-value heads each rank still has one head.
    copied = traffic(Layout(cp=2, tp=8)).bytes_by_axis["cp"]
    assert (full, copied) == (2 * grouped, grouped / 4)
    cluster = Cluster(H100, nodes=1)
    latent = step_traffic(Job(model("deepseek-v3"), Recipe(), Layout(cp=2), cluster, sequence=4096))
    # 128 heads with keys of 128 + 64 and values of 128.
    assert entry(latent, "cp", "their gradients").size_bytes == 2048 * 128 * 320 * 2


def test_experts_send_routed_tokens():
    result = traffic(Layout(dp=8, ep=4, micro_batch=2, accumulation=3), shape=EXPERTS)
    dispatch, combine = entry(result, "ep", "dispatch"), entry(result, "ep", "combine")
    # Layers with experts, micro-batches, passes.
    assert dispatch.count == combine.count == 6 * 3 * 2
    # 2 x 256 tokens, each to 2 experts, three quarters of which lie elsewhere.
    assert dispatch.sent_bytes == 2 * 256 * 2 * 512 * 2 * 3 / 4
    uneven = traffic(Layout(dp=8, ep=4), shape=EXPERTS, recipe=Recipe(imbalance=1.25))
    even = traffic(Layout(dp=8, ep=4), shape=EXPERTS)
    assert uneven.bytes_by_axis["ep"] == pytest.approx(1.25 * even.bytes_by_axis["ep"])


def test_a_token_may_be_sent_once_to_each_node():
    """DeepSeek-V3 on 8 nodes: 8 copies of a token, or one for each of 4 nodes; 7 of 8 leave."""
    layout = Layout(dp=64, ep=64)
    job = Job(model("deepseek-v3"), Recipe(), layout, Cluster(H100, nodes=8), sequence=4096)
    token = 4096 * 7168 * 2
    for limit, copies in ((1, 1), (4, 4), (8, 5.3)):  # 8 choices meet on 5.3 nodes
        sent = step_traffic(job, policy=CommunicationPolicy(token_nodes=limit))
        between = entry(sent, "ep", "dispatch to nodes")
        assert between.ranks == 8 and between.link.bytes_per_s == H100.between.bytes_per_s
        assert between.sent_bytes == pytest.approx(copies * token * 7 / 8, rel=0.01)
        forwarded = entry(sent, "ep", "dispatch in a node")
        assert forwarded.ranks == 8 and forwarded.link == H100.inside and forwarded.hidden
    plain = entry(step_traffic(job), "ep", "dispatch")
    assert plain.sent_bytes == pytest.approx(8 * token * 63 / 64)
    near = Job(EXPERTS, Recipe(), Layout(dp=8, ep=8), Cluster(H100, nodes=2), sequence=SEQUENCE)
    # In one node once to each rank: two choices of other experts, each of which has its own rank.
    one_node = step_traffic(near, policy=CommunicationPolicy(token_nodes=1))
    assert one_node.collectives == step_traffic(near).collectives
    # Four experts on each of two ranks, 2 · (1 - C(4, 2) / C(8, 2)) = 11/7 ranks for two choices.
    pair = replace(near, layout=Layout(dp=2, ep=2))
    once, always = (
        entry(step_traffic(pair, policy=CommunicationPolicy(token_nodes=nodes)), "ep", "combine")
        for nodes in (1, None)
    )
    assert once.sent_bytes / always.sent_bytes == pytest.approx(11 / 14)


def test_what_nothing_hides_is_the_first_gather_and_the_last_reduction():
    """One layer and the root, in each of 3 passes; one of the buckets of a step."""
    layout = Layout(dp=8, zero_stage=3, accumulation=3)
    each = traffic(layout)
    root = entry(each, "dp", "gradients of ends")
    assert root.alone == root.count == 3 and root.hideable_s == root.hideable_bytes == 0
    layers = entry(each, "dp", "gradients of layers")
    assert layers.alone == entry(each, "dp", "parameters of layers").alone == 3
    assert layers.hideable_s == pytest.approx(layers.seconds * 7 / 8)
    assert layers.hideable_bytes == pytest.approx(layers.total_bytes * 7 / 8)
    kept = traffic(replace(layout, reshard=False, reduce="update"))
    for what in ("parameters", "gradients"):
        assert entry(kept, "dp", f"{what} of layers").alone == 1
    ddp = traffic(Layout(dp=8), policy=CommunicationPolicy(bucket_bytes=10**6))
    buckets = entry(ddp, "dp", "gradients of layers")
    assert buckets.count > 2 and buckets.alone == 1


def test_gradients_of_experts_are_reduced_among_fewer_which_are_further_apart():
    result = traffic(Layout(dp=16, ep=8), shape=EXPERTS)
    assert entry(result, "ep", "dispatch").link == H100.inside
    copies = entry(result, "dp", "gradients of experts")
    assert (copies.ranks, copies.link) == (2, H100.between)
    assert entry(result, "dp", "gradients of layers").ranks == 16
    alone = traffic(Layout(dp=8, ep=8), shape=EXPERTS)
    assert "gradients of experts" not in {item.what for item in alone.collectives}


def test_experts_under_sequence_parallelism_gather_routed_tokens():
    layout = Layout(dp=4, ep=4, tp=2, sequence_parallel=True)
    result = traffic(layout, shape=EXPERTS)
    routed = entry(result, "tp", "experts", "all-gather")
    shared = entry(result, "tp", "shared experts", "all-gather")
    assert routed.count == shared.count == 6 * 2
    assert routed.size_bytes == 2 * shared.size_bytes
    plain = traffic(replace(layout, sequence_parallel=False), shape=EXPERTS)
    whole, half = (entry(item, "ep", "dispatch").size_bytes for item in (plain, result))
    assert whole == 2 * half


def test_precision_counts():
    layout = Layout(dp=8, tp=2)
    bf16 = traffic(layout).bytes_by_axis
    wide = traffic(layout, recipe=Recipe(gradients="fp32")).bytes_by_axis
    assert wide == pytest.approx({"tp": bf16["tp"], "dp": 2 * bf16["dp"]})
    one = traffic(replace(layout, zero_stage=1), recipe=Recipe(gradients="fp32")).bytes_by_axis
    assert one["dp"] == pytest.approx(1.5 * bf16["dp"])  # gradients of 4 bytes, weights of 2
    fp32 = Recipe(parameters="fp32", gradients="fp32", master_copy=False)
    assert traffic(layout, recipe=fp32).bytes_by_axis["dp"] == pytest.approx(wide["dp"])


REFUSED = [
    (lambda: traffic(Layout(dp=256)), "world 128 is not"),
    (lambda: traffic(Layout(), overlap={"dp": 1.5}), "at most 1, got 1.5"),
]
PROBES = by_name(
    Probe(
        step_traffic,
        {"job": JOB},
        {"policy": CommunicationPolicy(bucket_bytes=10**5), "overlap": {"dp": 0.5}},
        see=lambda sent: (sent.seconds, sent.exposed_seconds),
    )
)
