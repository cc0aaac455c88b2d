"""What holds for every shape, recipe, layout and cluster: no example may break it.

100 random examples for each property; 10,000 in the slow mode (see conftest.py).
"""

import math
import random
from dataclasses import fields, replace

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from course_lib.theory.compute.budget import utilisation
from course_lib.theory.compute.flops import head_flops, layer_flops, training_flops
from course_lib.theory.inputs.hardware import ACCELERATORS, Cluster, Link
from course_lib.theory.inputs.job import Job
from course_lib.theory.inputs.layout import Layout
from course_lib.theory.inputs.models import MODELS
from course_lib.theory.inputs.recipe import (
    OPTIMIZER_STATE_BYTES,
    PRECISION_BYTES,
    RECOMPUTE,
    Recipe,
)
from course_lib.theory.inputs.schedule_rules import SCHEDULES
from course_lib.theory.inputs.shape import LatentAttention, TransformerShape
from course_lib.theory.memory.peak import explain_memory, gpu_memory, host_bytes, worst_stage
from course_lib.theory.memory.states import local_parameters, sharded_states
from course_lib.theory.network import collectives
from course_lib.theory.network.step_traffic import step_traffic
from course_lib.theory.network.traffic import AXES, CommunicationPolicy
from course_lib.theory.step.assumptions import Assumptions
from course_lib.theory.step.stage import stage_busy_time, stage_work
from course_lib.theory.step.step_time import step_time

POWERS = st.sampled_from([1, 2, 4, 8])
FLAGS = st.booleans()
PARTS = st.floats(0, 1)
WIDTHS = st.integers(1, 64)


@st.composite
def shapes(draw):
    """GPTs, LLaMAs, mixtures of experts and latent attention, all of small sizes."""
    heads = draw(POWERS) * draw(st.integers(1, 3))
    latent = draw(st.none() | st.builds(LatentAttention, st.none() | WIDTHS, *[WIDTHS] * 4))
    divisors = [d for d in range(1, heads + 1) if heads % d == 0]
    layers = draw(st.integers(1, 12))
    experts = draw(st.sampled_from([0, 0, 2, 4, 8]))
    dense = draw(st.integers(0, layers - 1)) if experts else 0
    ffn = 8 * draw(st.integers(1, 50))
    mixture = {
        "experts": experts,
        "top_k": draw(st.integers(1, max(1, experts))),
        "shared_experts": draw(st.integers(0, 2)),
        "expert_ffn": 8 * draw(st.integers(1, 50)) if dense else ffn,
        "dense_layers": dense,
    }
    return TransformerShape(
        layers,
        heads * draw(st.integers(1, 32)),
        heads,
        ffn,
        vocab=draw(st.integers(1, 5000)),
        context=draw(st.integers(64, 512)),
        kv_heads=heads if latent else draw(st.sampled_from(divisors)),
        mlp=draw(st.sampled_from(["gelu", "swiglu"])),
        norm=draw(st.sampled_from(["layernorm", "rmsnorm"])),
        biases=draw(FLAGS),
        learned_positions=draw(FLAGS),
        tied_embeddings=draw(FLAGS),
        head_dim=None if latent else draw(st.none() | WIDTHS),
        mla=latent,
        **(mixture if experts else {}),
    )


@st.composite
def recipes(draw):
    parameters, gradients = (draw(st.sampled_from(list(PRECISION_BYTES))) for _ in range(2))
    gathering = draw(st.sampled_from(["fsdp", "yafsdp"]))
    return Recipe(
        parameters,
        gradients,
        optimizer=draw(st.sampled_from(list(OPTIMIZER_STATE_BYTES))),
        master_copy=parameters != "fp32" and draw(FLAGS),
        gradient_buffer=gradients != "fp32" and draw(FLAGS),
        attention=draw(st.sampled_from(["flash", "standard"])),
        recompute=draw(st.sampled_from(RECOMPUTE)),
        dropout=draw(FLAGS),
        fused_norms=draw(FLAGS),
        fused_swiglu=draw(FLAGS),
        repeat_kv=draw(FLAGS),
        imbalance=draw(st.floats(1, 4)),
        gathering=gathering,
        gathered_units=2 if gathering == "yafsdp" else draw(st.integers(1, 4)),
        gradient_as_bucket_view=draw(FLAGS),
        offload=draw(st.sampled_from(["none", "optimizer"])),
    )


@st.composite
def schedules(draw, stages):
    """Schedule, micro-batches and virtual stages that go with a number of pipeline ranks."""
    names = [name for name in SCHEDULES if name != "dualpipe" or stages % 2 == 0]
    name, count = draw(st.sampled_from(names)), draw(st.integers(1, 8))
    if name == "interleaved":
        return name, stages * count, draw(st.integers(2, 3))
    if name == "zbv":
        count += 2 * (stages - 1)
    return (name, 2 * (stages + count), 1) if name == "dualpipe" else (name, count, 1)


@st.composite
def layouts(draw, shape):
    """A layout that fits the shape; degrees that do not fit are passed over."""
    cp, dp, zero_stage = draw(POWERS), draw(POWERS), draw(st.integers(0, 3))
    pp = draw(st.integers(1, shape.layers))
    name, micro_batches, virtual = draw(schedules(pp))
    assume(pp * (2 if name == "zbv" else virtual) <= shape.layers)
    experts = [ep for ep in (1, 2, 4, 8) if dp * cp % ep == 0 and shape.experts % ep == 0]
    moments = ["update", "micro-batch", *["group"] * (name == "interleaved")]
    return Layout(
        dp,
        draw(st.sampled_from([tp for tp in (1, 2, 4, 8) if fits(shape, tp=tp)])),
        pp,
        cp,
        draw(st.sampled_from(experts)) if shape.experts else 1,
        zero_stage,
        sequence_parallel=draw(FLAGS),
        micro_batch=draw(st.integers(1, 4)),
        accumulation=micro_batches,
        schedule=name,
        virtual_stages=virtual,
        reduce=draw(st.sampled_from(moments)) if zero_stage > 1 else None,
    )


def fits(shape, **degrees):
    """Whether a layout exists and fits the shape."""
    try:
        Layout(**degrees).check(shape)
    except ValueError:
        return False
    return True


@st.composite
def jobs(draw):
    """A shape, a recipe, a layout that fits, and a sequence that it can cut: a multiple of 64."""
    shape = draw(shapes())
    most = shape.context // 64 if shape.learned_positions else 16
    sequence = 64 * draw(st.integers(1, most))
    return Job(shape, draw(recipes()), draw(layouts(shape)), sequence=sequence)


@st.composite
def clusters(draw, world):
    """A cluster with at least `world` GPUs of any kind."""
    chip = draw(st.sampled_from(list(ACCELERATORS.values())))
    per_node = draw(POWERS)
    between = chip.between or Link("network", 1e9 * draw(st.integers(1, 100)), 1e-5)
    return Cluster(chip, -(-world // per_node), per_node, between=between)


POLICIES = st.builds(
    CommunicationPolicy,
    bucket_bytes=st.integers(10**3, 10**9),
    algorithm=st.sampled_from(list(collectives.ALGORITHMS)),
)
AXIS_PARTS = st.dictionaries(st.sampled_from(["tp", "cp", "ep", "dp", "pp"]), PARTS)
ASSUMPTIONS = st.builds(
    Assumptions,
    layer_efficiency=st.floats(0.05, 1),
    touches=st.floats(0, 20),
    mask=st.sampled_from([None, "full", "causal"]),
    overlap=AXIS_PARTS,
    policy=POLICIES,
)


def check_amounts(*amounts):
    """Finite and not below 0."""
    for amount in amounts:
        assert math.isfinite(amount) and amount >= 0


def check_text(text):
    assert text and "nan" not in text.lower() and "inf " not in text.lower()


# --- parameters ---


@given(shapes())
def test_parameters_are_the_sum_of_their_places_and_of_their_parts(shape):
    count = shape.parameters()
    check_amounts(*count)
    assert sum(count) == count.total >= count.active >= 0
    parts = [shape.embedding_parameters(), shape.head_parameters()]
    parts += [shape.layer_parameters(layer) for layer in range(shape.layers)]
    assert sum(part.total for part in parts) == count.total


@given(jobs())
def test_the_stages_of_a_pipeline_have_all_parameters(job):
    shape, layout = job.shape, job.layout
    assume(layout.schedule != "dualpipe")
    alone = replace(layout, tp=1, ep=1)
    stages = [local_parameters(shape, alone, stage) for stage in range(layout.pp)]
    copies = shape.tied_embeddings and layout.pp > 1 and layout.schedule != "zbv"
    copied = shape.vocab * shape.hidden * copies
    assert sum(stage.total for stage in stages) == shape.parameters().total + copied
    cut = [local_parameters(shape, layout, stage).total for stage in range(layout.pp)]
    assert sum(cut) * layout.tp * layout.ep >= sum(stage.total for stage in stages)


# --- memory ---


@given(jobs(), st.sampled_from(["GB", "GiB"]))
def test_memory_is_the_sum_of_its_leaves_on_every_stage(job, unit):
    bills = [gpu_memory(job, stage) for stage in range(job.layout.pp)]
    for stage, bill in enumerate(bills):
        leaves = [getattr(bill, leaf.name) for leaf in fields(bill)]
        check_amounts(*leaves)
        assert all(isinstance(leaf, int) for leaf in leaves)
        assert sum(leaves) == bill.total_bytes == sum(bill.consumers.values())
        assert bill.model_states_bytes <= bill.total_bytes
        check_amounts(host_bytes(job, stage))
        check_text(bill.explain(unit) + explain_memory(job, stage, unit=unit))
    worst, bill = worst_stage(job)
    assert bill == bills[worst]
    assert bill.total_bytes == max(other.total_bytes for other in bills)


def states_of_the_worst_stage(shape, recipe, layout):
    return max(
        sharded_states(local_parameters(shape, layout, stage), recipe, layout).model_states_bytes
        for stage in range(layout.pp)
    )


@given(jobs(), st.sampled_from(["dp", "tp", "pp", "cp", "ep", "zero_stage"]))
def test_more_sharding_never_needs_more_model_states(job, axis):
    shape, recipe, layout = job.shape, job.recipe, job.layout
    degree = getattr(layout, axis)
    more = {axis: degree + 1 if axis == "zero_stage" else 2 * degree}
    if axis == "pp" and layout.schedule in ("interleaved", "zbv", "dualpipe"):
        more["accumulation"] = 4 * layout.accumulation
    assume(more.get("zero_stage", 3) <= 3)
    assume(axis != "ep" or layout.shard_ranks % more["ep"] == 0)
    sharded = replace(layout, **more)
    assume(fits(shape, **vars(sharded)))
    # Each expert's part is rounded up, so that halves of a layer's may be one number larger.
    rounding = recipe.bytes_per_parameter * shape.layers if axis == "ep" else 0
    before = states_of_the_worst_stage(shape, recipe, layout)
    assert states_of_the_worst_stage(shape, recipe, sharded) <= before + rounding


@given(jobs(), st.sampled_from(["cp", "tp", "sequence_parallel"]))
def test_cutting_the_sequence_or_the_layers_never_keeps_more_activations(job, axis):
    shape, layout, sequence = job.shape, job.layout, job.sequence
    layout = replace(layout, sequence_parallel=axis == "tp" and layout.sequence_parallel)
    more = replace(layout, **{axis: True if axis == "sequence_parallel" else 2 * layout.cp})
    if axis == "tp":
        more = replace(layout, tp=2 * layout.tp)
    assume(fits(shape, **vars(more)) and sequence % (more.cp * more.tp) == 0)
    # That policy keeps the results of reduce-scatters, which only sequence parallelism has.
    assume(not more.sequence_parallel or job.recipe.recompute != "operators")
    kept = [gpu_memory(Job(shape, job.recipe, one, sequence=sequence)) for one in (layout, more)]
    # Routed tokens are rounded up: one token more for each layer and micro-batch in flight.
    token = 64 * (shape.hidden + shape.expert_ffn) if shape.experts else 0
    slack = shape.layers * sum(layout.in_flight(0).values()) * token
    assert kept[1].activations_bytes <= kept[0].activations_bytes + slack


# --- FLOPs ---


@given(
    shapes(),
    st.integers(1, 8),
    st.integers(1, 64),
    st.fixed_dictionaries(
        {
            "mask": st.sampled_from(["full", "causal"]),
            "recompute": st.sampled_from(["none", "selective", "full"]),
            "attention": st.sampled_from(["standard", "flash"]),
        }
    ),
)
def test_flops_are_the_sum_of_layers_and_head(shape, sequences, sequence, conventions):
    whole = training_flops(shape, sequences, sequence, **conventions)
    batch = (sequences, sequence)
    layers = [layer_flops(shape, i, *batch, **conventions) for i in range(shape.layers)]
    check_amounts(*whole.leaves().values())
    parts = [*layers, head_flops(shape, *batch)]
    assert sum(part.hardware_flop for part in parts) == whole.hardware_flop
    assert whole.model_flop + whole.recompute_flop == sum(whole.leaves().values())
    assert whole.forward_flop + whole.backward_flop == whole.hardware_flop
    assert training_flops(shape, 2 * sequences, sequence, **conventions).model_flop == (
        2 * whole.model_flop
    )
    rates = [utilisation(flop, 1.5, 8, 1e15) for flop in (whole.model_flop, whole.hardware_flop)]
    check_amounts(*rates)
    assert rates[0] <= rates[1]
    check_text(whole.explain())


# --- traffic and time ---


@given(st.data(), jobs(), POLICIES, AXIS_PARTS)
def test_traffic_is_the_sum_of_its_collectives(data, job, policy, overlap):
    layout = job.layout
    cluster = data.draw(clusters(layout.world))
    stage = data.draw(st.integers(0, layout.pp - 1))
    job = replace(job, cluster=cluster)
    traffic = step_traffic(job, stage, policy=policy, overlap=overlap)
    for entry in traffic.collectives:
        check_amounts(entry.count, entry.size_bytes, entry.sent_bytes, entry.seconds)
    for total, parts in (
        (traffic.total_bytes, traffic.bytes_by_axis),
        (traffic.exposed_seconds, traffic.exposed_by_axis),
    ):
        check_amounts(total, *parts.values())
        assert math.isclose(total, sum(parts.values()), rel_tol=1e-9, abs_tol=1e-12)
    assert traffic.exposed_seconds <= traffic.seconds * (1 + 1e-9)
    silent = {axis for axis in ("tp", "cp", "ep", "pp") if getattr(layout, axis) == 1}
    silent |= {"dp"} if layout.shard_ranks == 1 else set()
    assert not silent & set(traffic.bytes_by_axis)
    check_text(traffic.explain())


@given(st.data(), jobs(), ASSUMPTIONS)
def test_step_time_is_the_sum_of_its_leaves(data, job, assumptions):
    job = replace(job, cluster=data.draw(clusters(job.layout.world)))
    step = step_time(job, assumptions)
    check_amounts(*step.leaves().values(), step.communication_s, step.tokens_per_s)
    assert step.total_s == sum(step.leaves().values()) > 0
    assert step.communication_s <= step.total_s
    assert 0 < step.mfu <= step.hfu <= 1
    assert step.tokens == job.tokens_per_update == job.layout.global_batch * job.sequence
    check_amounts(step.days(1e12), step.cost_usd(1e12))
    check_text(step.explain())


# --- steps of random jobs ---

RANDOM_JOBS = 10_000 if settings().max_examples > 1000 else 3_000  # see conftest.py


def _faster(link, rate=2.0, latency=0.5):
    return replace(link, bytes_per_s=rate * link.bytes_per_s, latency_s=latency * link.latency_s)


def _random_job(pick):
    """A published model on a layout and a cluster of any kind that fit it."""
    while True:
        shape = pick.choice(list(MODELS.values()))
        degrees = {axis: pick.choice((1, 1, 2, 4, 8)) for axis in ("tp", "cp", "dp")}
        degrees["pp"] = pick.choice((1, 1, 2, 4))
        degrees["ep"] = pick.choice((1, 2, 4, 8)) if shape.experts else 1
        schedule = pick.choice(("1f1b", "gpipe", "interleaved", "zb1p"))
        recipe = pick.choice((Recipe(), Recipe(recompute="full"), Recipe(attention="standard")))
        try:
            layout = Layout(
                **degrees,
                zero_stage=pick.randrange(4),
                sequence_parallel=pick.random() < 0.5,
                micro_batch=pick.choice((1, 2, 4)),
                accumulation=degrees["pp"] * pick.choice((1, 2, 8)),
                schedule=schedule if degrees["pp"] > 1 else "1f1b",
                virtual_stages=2 if schedule == "interleaved" and degrees["pp"] > 1 else 1,
            )
            per_node = pick.choice((2, 4, 8))
            chip = pick.choice(list(ACCELERATORS.values()))
            between = Link("network", 10 ** pick.uniform(8.5, 11.5), 10 ** pick.uniform(-6, -4))
            nodes = -(-layout.world // per_node)
            cluster = Cluster(chip, nodes, per_node, between=between)
            sequence = min(shape.context, pick.choice((1024, 4096, 16384)))
            return Job(shape, recipe, layout, cluster, sequence=sequence)
        except ValueError:
            continue


def _random_assumptions(pick):
    """Any part of any axis hides, at any price."""
    return Assumptions(
        overlap={axis: pick.choice((0.0, 0.5, 1.0)) for axis in AXES},
        message_touches=pick.choice((0, 4, 40)),
        message_sms=pick.choice((0.0, 0.15, 1.0)),
        policy=CommunicationPolicy(token_nodes=pick.choice((None, 1, 4))),
    )


def _on(job, **changes):
    return replace(job, cluster=replace(job.cluster, **changes))


def _with_chip(job, **changes):
    return _on(job, accelerator=replace(job.cluster.accelerator, **changes))


def no_slower(job, guess, pick):
    """With something better a step takes no longer."""
    cluster, chip = job.cluster, job.cluster.accelerator
    axis = pick.choice(AXES)
    more = replace(guess, overlap={**guess.overlap, axis: min(1, guess.overlap[axis] + 0.3)})
    better = [
        (_with_chip(job, peak_flop_per_s=2 * chip.peak_flop_per_s), guess),
        (_with_chip(job, memory_bytes_per_s=2 * chip.memory_bytes_per_s), guess),
        (_on(job, inside=_faster(cluster.inside)), guess),
        (_on(job, between=_faster(cluster.between)), guess),
        (job, more),
        (job, replace(guess, message_touches=guess.message_touches / 2)),
        (job, replace(guess, message_sms=guess.message_sms / 2)),
    ]
    before, after = step_time(job, guess), step_time(*pick.choice(better))
    assert after.total_s <= before.total_s * (1 + 1e-9)


def twice_the_rates_half_the_time(job, guess, pick):
    """Of chips, memories, links and latencies."""
    cluster, chip = job.cluster, job.cluster.accelerator
    fast = replace(
        chip,
        peak_flop_per_s=2 * chip.peak_flop_per_s,
        memory_bytes_per_s=2 * chip.memory_bytes_per_s,
    )
    links = {"inside": _faster(cluster.inside), "between": _faster(cluster.between)}
    quick = step_time(_on(job, accelerator=fast, **links), guess)
    assert quick.total_s == pytest.approx(step_time(job, guess).total_s / 2)


def nothing_hides_behind_itself(job, guess, pick):
    """What messages save, all axes together, is no longer than the computing they hide behind."""
    stage = pick.randrange(job.layout.pp)
    shows = stage_busy_time(job, guess, stage)
    sent = step_traffic(
        replace(job, cluster=guess.reached(job.cluster)), stage, policy=guess.policy
    )
    waited = sum(sent.waited_by_axis.values())
    shown = sum(getattr(shows, f"{axis}_s") for axis in AXES)
    computing = shows.compute_s + shows.elementwise_s
    assert waited - shown <= computing * (1 + 1e-9)
    assert shown <= waited * (1 + 1e-9)


def all_stages_compute_what_the_model_needs(job, guess, pick):
    """FLOP of all stages and GPUs are the hardware FLOP."""
    layout = job.layout
    found = [stage_work(job, guess, stage) for stage in range(layout.pp)]
    flop = sum(work.matmul_flop + work.attention_flop for work in found)
    hardware_flop = step_time(job, guess).hardware_flop
    assert flop * layout.world / layout.pp == pytest.approx(hardware_flop)


def what_is_sent_is_cut_and_not_lost(job, guess, pick):
    """Stages of one pipeline send together what one stage would send for all layers."""
    layout = job.layout
    flat = replace(layout, pp=1, schedule="1f1b", virtual_stages=1)
    axes = ("cp", "ep")
    stages = [step_traffic(job, stage, axes=axes) for stage in range(layout.pp)]
    one = step_traffic(replace(job, layout=flat), axes=axes)
    for axis in axes:
        parts = sum(stage.bytes_by_axis.get(axis, 0) for stage in stages)
        assert parts == pytest.approx(one.bytes_by_axis.get(axis, 0))


STEP_PROPERTIES = (
    *(no_slower, no_slower, twice_the_rates_half_the_time, nothing_hides_behind_itself),
    *(all_stages_compute_what_the_model_needs, what_is_sent_is_cut_and_not_lost),
)


def test_random_steps_have_the_properties_of_a_step():
    """Each job has one property looked at."""
    pick, wrong = random.Random(0), []
    for number in range(RANDOM_JOBS):
        job, guess = _random_job(pick), _random_assumptions(pick)
        law = STEP_PROPERTIES[number % len(STEP_PROPERTIES)]
        try:
            law(job, guess, pick)
        except AssertionError as error:
            wrong.append(f"{law.__name__}: {job.layout} {guess.overlap} {error}")
    assert not wrong, f"{len(wrong)} of {RANDOM_JOBS}: {wrong[:3]}"
