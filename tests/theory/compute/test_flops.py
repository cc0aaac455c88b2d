"""FLOPs against torch's counter, exactly; time, money and utilisation against arithmetic."""

import dataclasses
from itertools import pairwise

import pytest
import reference_modules
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.checkpoint import checkpoint, set_checkpoint_early_stop
from torch.utils.flop_counter import FlopCounterMode

from course_lib.scratch.gpt import GPT
from course_lib.theory.compute import budget, flops
from course_lib.theory.compute.flops import FlopBreakdown, training_flops
from course_lib.theory.inputs.models import MODELS
from course_lib.theory.inputs.shape import LatentAttention, TransformerShape
from course_lib.theory.inputs.units import format_flop

LLAMA = TransformerShape(
    layers=3,
    hidden=24,
    heads=6,
    ffn=40,
    vocab=100,
    context=64,
    kv_heads=2,
    mlp="swiglu",
    norm="rmsnorm",
    biases=False,
    learned_positions=False,
    tied_embeddings=False,
    head_dim=8,
)
MIXTRAL = dataclasses.replace(LLAMA, head_dim=4, experts=5, top_k=2)
DEEPSEEK = dataclasses.replace(
    LLAMA,
    kv_heads=6,
    head_dim=None,
    experts=5,
    top_k=2,
    shared_experts=2,
    expert_ffn=12,
    dense_layers=1,
    mla=LatentAttention(10, 8, 4, 2, 5),
)
LLAMA_SIZES = {"layers": 3, "hidden": 24, "heads": 6, "kv_heads": 2, "ffn": 40, "vocab": 100}


def counted(module, sequences, sequence, device="meta"):
    """FLOP that torch counts in one forward and backward pass, and in the forward alone."""
    tokens = torch.zeros(sequences, sequence, dtype=torch.long, device=device)
    with FlopCounterMode(display=False) as counter:
        loss = module(tokens).sum()
        forward = counter.get_total_flops()
        loss.backward()
    return counter.get_total_flops(), forward


@pytest.mark.parametrize(("name", "sequences"), [("gpt2-124m", 1), ("gpt2-355m", 3)])
def test_gpt_equals_torch_s_counter(name, sequences):
    shape = MODELS[name]
    with torch.device("meta"):
        module = GPT(shape.layers, shape.hidden, shape.heads, shape.vocab, shape.context)
    predicted = training_flops(shape, sequences, 512)
    assert counted(module, sequences, 512) == (predicted.model_flop, predicted.forward_flop)


def test_llama_with_grouped_queries_equals_torch_s_counter():
    with torch.device("meta"):
        module = reference_modules.llama(**LLAMA_SIZES, head_dim=8)
    predicted = training_flops(LLAMA, 2, 16)
    assert counted(module, 2, 16) == (predicted.model_flop, predicted.forward_flop)


def test_experts_equal_torch_s_counter_however_tokens_are_routed():
    torch.manual_seed(1)
    module = reference_modules.mixtral(**LLAMA_SIZES, experts=5, top_k=2)
    predicted = training_flops(MIXTRAL, 2, 16)
    assert counted(module, 2, 16, "cpu") == (predicted.model_flop, predicted.forward_flop)


def test_latent_attention_with_shared_experts_equals_torch_s_counter():
    torch.manual_seed(1)
    latent = (10, 8, 4, 2, 5)
    module = reference_modules.deepseek(3, 1, 24, 6, 40, 12, 100, 5, 2, 2, latent)
    predicted = training_flops(DEEPSEEK, 2, 16)
    assert counted(module, 2, 16, "cpu") == (predicted.model_flop, predicted.forward_flop)


class Checkpointed(torch.nn.Module):
    """`part`, run again in the backward pass; early_stop would save its last matrix product."""

    def __init__(self, part):
        super().__init__()
        self.part = part

    def forward(self, *inputs):
        with set_checkpoint_early_stop(False):
            return checkpoint(self.part, *inputs, use_reentrant=False)


class Core(torch.nn.Module):
    def forward(self, q, k, v):
        return reference_modules.attend(q, k, v)


@pytest.mark.parametrize("recompute", ["selective", "full"])
def test_recomputation_equals_torch_s_counter(recompute):
    with torch.device("meta"):
        module = reference_modules.llama(**LLAMA_SIZES, head_dim=8)
    for place, layer in enumerate(module.layers):
        if recompute == "full":
            module.layers[place] = Checkpointed(layer)
        else:
            layer.attention.core = Checkpointed(Core())
    predicted = training_flops(LLAMA, 2, 16, recompute=recompute)
    assert counted(module, 2, 16)[0] == predicted.hardware_flop
    assert predicted.model_flop == training_flops(LLAMA, 2, 16).model_flop


@pytest.mark.parametrize("heads", [1, 4])
def test_flash_attention_multiplies_queries_and_keys_again(heads):
    # torch counts 4 products of the scores' size for 2 forward ones, and 1 for the recomputation.
    shape = (2, heads, 16, 8)
    flash = torch.utils.flop_counter.sdpa_backward_flop_count(*[shape] * 4)
    forward = torch.utils.flop_counter.sdpa_flop_count(*[shape] * 3)
    model = TransformerShape(1, 8 * heads, heads, 8, 10, 16)
    predicted = training_flops(model, 2, 16, attention="flash")
    assert predicted.scores_flop + predicted.recompute_flop == forward + flash


def test_flash_attention_adds_to_full_recomputation_and_makes_selective_pointless():
    extra = {
        recompute: [
            training_flops(LLAMA, 1, 16, recompute=recompute, attention=attention).recompute_flop
            for attention in ("standard", "flash")
        ]
        for recompute in ("none", "selective", "full")
    }
    again = extra["none"][1]
    assert again == 3 * 2 * 6 * 8 * 16**2
    assert extra["selective"] == [2 * again, again]
    assert extra["full"][1] == extra["full"][0] + again


def test_causal_scores_are_half_of_all():
    full, causal = (training_flops(DEEPSEEK, 2, 15, mask=mask) for mask in ("full", "causal"))
    assert 2 * causal.scores_flop == full.scores_flop
    without = [dataclasses.replace(f, scores_flop=0, convention="") for f in (full, causal)]
    assert without[0] == without[1]


def test_megatron_s_formulas_are_the_exact_count():
    shape, batch, s = MODELS["gpt-18.4b"], 3, 2048
    sizes = {"layers": shape.layers, "hidden": shape.hidden, "vocab": shape.vocab}
    for recompute in ("none", "full"):
        exact = training_flops(shape, batch, s, recompute=recompute).hardware_flop
        assert flops.megatron_flop(batch, s, **sizes, recompute=recompute) == exact
    # Korthikanti et al. charge selective recomputation three times its forward pass.
    paper, none = (
        flops.megatron_flop(batch, s, **sizes, recompute=r) for r in ("selective", "none")
    )
    exact = training_flops(shape, batch, s, recompute="selective")
    assert paper - none == 3 * exact.recompute_flop


def test_palm_s_formula_is_the_exact_count_up_to_norms():
    shape = MODELS["llama2-7b"]
    n = shape.parameters().without_embedding - shape.parameters().norms
    predicted = 4096 * flops.palm_flop_per_token(
        n, layers=32, heads=32, head_dim=128, sequence=4096
    )
    assert predicted == training_flops(shape, 1, 4096).model_flop


def test_six_nd_of_active_parameters_is_all_but_the_scores():
    for name in ("gpt3-175b", "llama3-70b", "mixtral-8x7b", "deepseek-v3"):
        shape = MODELS[name]
        count, flop = shape.parameters(), training_flops(shape, 1, 1024)
        multiplied = count.active - count.positions
        if not shape.tied_embeddings:
            multiplied -= count.embedding
        short = flops.six_nd(multiplied, 1024)
        assert short == pytest.approx(flop.model_flop - flop.scores_flop, rel=1e-3)


def test_layers_and_head_sum_to_the_model():
    conventions = {"mask": "causal", "recompute": "full", "attention": "flash"}
    layers = [flops.layer_flops(DEEPSEEK, i, 2, 16, **conventions) for i in range(3)]
    total = sum(layers, start=flops.head_flops(DEEPSEEK, 2, 16))
    assert total.leaves() == training_flops(DEEPSEEK, 2, 16, **conventions).leaves()


SHAPES = st.builds(
    lambda layers, heads, head_dim, ffn, experts, top_k, mlp, tied: TransformerShape(
        layers,
        4 * heads,
        heads,
        ffn,
        vocab=50,
        context=512,
        head_dim=head_dim,
        mlp=mlp,
        tied_embeddings=tied,
        experts=experts,
        top_k=min(top_k, experts),
    ),
    layers=st.integers(1, 40),
    heads=st.integers(1, 64),
    head_dim=st.integers(1, 64),
    ffn=st.integers(1, 9999),
    experts=st.integers(0, 64),
    top_k=st.integers(1, 64),
    mlp=st.sampled_from(["gelu", "swiglu"]),
    tied=st.booleans(),
)
BATCHES = st.tuples(st.integers(1, 99), st.integers(1, 512))
CONVENTIONS = st.fixed_dictionaries(
    {
        "mask": st.sampled_from(flops.MASKS),
        "recompute": st.sampled_from(flops.RECOMPUTE),
        "attention": st.sampled_from(flops.ATTENTION),
    }
)


@given(shape=SHAPES, batch=BATCHES, conventions=CONVENTIONS)
def test_leaves_are_never_negative_and_sum_to_the_totals(shape, batch, conventions):
    flop = training_flops(shape, *batch, **conventions)
    assert all(leaf >= 0 for leaf in flop.leaves().values())
    assert flop.hardware_flop == sum(flop.leaves().values())
    assert flop.model_flop == flop.hardware_flop - flop.recompute_flop == 3 * flop.forward_flop
    assert flop.backward_flop == 2 * flop.forward_flop + flop.recompute_flop
    assert flop.tokens == batch[0] * batch[1]


@given(shape=SHAPES, batch=BATCHES, conventions=CONVENTIONS)
def test_flops_are_proportional_to_sequences(shape, batch, conventions):
    one, many = (training_flops(shape, n, batch[1], **conventions) for n in (1, batch[0]))
    assert many.leaves() == one.times(batch[0]).leaves()


@given(shape=SHAPES, batch=BATCHES)
def test_more_recomputation_is_never_less_work(shape, batch):
    work = [
        training_flops(shape, *batch, recompute=recompute).hardware_flop
        for recompute in ("none", "selective", "full")
    ]
    assert all(less <= more for less, more in pairwise(work))
    assert work[2] < work[0] * 4 / 3


@pytest.mark.parametrize(
    "change",
    [
        {"shape": DEEPSEEK},
        {"sequences": 3},
        {"sequence": 17},
        {"mask": "causal"},
        {"recompute": "full"},
        {"recompute": "selective"},
        {"attention": "flash"},
    ],
)
def test_each_argument_changes_the_flops(change):
    base = {"shape": LLAMA, "sequences": 2, "sequence": 16}
    assert training_flops(**base).leaves() != training_flops(**{**base, **change}).leaves()


def test_sequence_defaults_to_the_context():
    assert training_flops(LLAMA) == training_flops(LLAMA, 1, 64)
    assert training_flops(LLAMA).model_flop_per_token * 64 == training_flops(LLAMA).model_flop


def test_explain_has_each_leaf_both_totals_and_the_convention():
    text = training_flops(DEEPSEEK, 2, 16, mask="causal", recompute="full").explain()
    words = ("projections", "scores", "mlp", "experts", "shared_experts", "router", "head")
    for word in (*words, "model", "recompute", "hardware", "causal mask", "recompute=full"):
        assert word in text
    assert "experts" not in training_flops(LLAMA).explain()


def test_an_amount_of_computation_is_not_a_rate():
    assert format_flop(196_608_000_000_000) == "196.6 TFLOP"
    assert format_flop(3.14e23) == "314 ZFLOP"
    assert format_flop(12) == "12 FLOP"


@pytest.mark.parametrize("change", [{"batch": 2}, {"sequence": 9}, {"layers": 3}, {"hidden": 16},
                                    {"vocab": 60}, {"recompute": "none"}])  # fmt: skip
def test_each_argument_changes_megatron_s_formula(change):
    base = {"batch": 1, "sequence": 8, "layers": 2, "hidden": 8, "vocab": 50}
    assert flops.megatron_flop(**base) != flops.megatron_flop(**{**base, **change})


@pytest.mark.parametrize("name", ["parameters", "layers", "heads", "head_dim", "sequence"])
def test_each_argument_changes_palm_s_formula(name):
    base = {"parameters": 100, "layers": 2, "heads": 2, "head_dim": 4, "sequence": 8}
    changed = {**base, name: 2 * base[name]}
    assert flops.palm_flop_per_token(**base) != flops.palm_flop_per_token(**changed)


def test_a_run_is_time_gpu_hours_and_money():
    run = budget.training_run(8.64e20, gpus=100, flop_per_s_per_gpu=1e14, gpu_hour_usd=3)
    assert (run.time_s, run.days, run.gpu_hours, run.cost_usd) == (86400, 1, 2400, 7200)
    for word in ("86,400 s", "1.00 days", "100 GPUs × 24.0 h", "2,400", "7,200 USD"):
        assert word in run.explain()
    measured = budget.training_run_at(8.64e9, gpus=100, tokens_per_s_per_gpu=1000)
    assert measured == budget.TrainingRun(86400, 100, 2.0)
    assert budget.training_run_at(8.64e9, 100, 1000, gpu_hour_usd=3) == run


def test_training_days_are_eight_tp_over_nx():
    arguments = {"tokens": 3e11, "parameters": 1.75e11, "gpus": 1024, "flop_per_s_per_gpu": 1.4e14}
    by_hand = 8 * 3e11 * 1.75e11 / (1024 * 1.4e14) / 86400
    assert budget.training_days(**arguments) == pytest.approx(by_hand)
    assert budget.training_days(**arguments, recompute="none") == pytest.approx(by_hand * 6 / 8)


def test_hfu_counts_what_was_recomputed_and_mfu_does_not():
    flop = training_flops(MODELS["gpt3-175b"], 64, 2048, recompute="full")
    where = {"time_s": 18.0, "gpus": 64, "peak_flop_per_s": 312e12}
    assert budget.mfu(flop, **where) == flop.model_flop / (18 * 64 * 312e12)
    ratio = budget.hfu(flop, **where) / budget.mfu(flop, **where)
    assert ratio == pytest.approx(flop.hardware_flop / flop.model_flop)
    for name in where:
        assert budget.mfu(flop, **{**where, name: 2 * where[name]}) == pytest.approx(
            budget.mfu(flop, **where) / 2
        )


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: training_flops(LLAMA, 0), "sequences must be at least 1"),
        (lambda: training_flops(LLAMA, 1, 1.5), "sequence must be a whole number"),
        (lambda: training_flops(MODELS["gpt2-124m"], 1, 2048), "longer than the 1024 positions"),
        (lambda: training_flops(LLAMA, mask="casual"), "did you mean 'causal'"),
        (lambda: training_flops(LLAMA, recompute="al"), "recompute 'al' is not one of"),
        (lambda: training_flops(LLAMA, attention="flesh"), "did you mean 'flash'"),
        (lambda: flops.layer_flops(LLAMA, 3, 1, 8), "layer 3 is above layers - 1 = 2"),
        (lambda: FlopBreakdown(1) + FlopBreakdown(2), "tokens 1 and 2 differ"),
        (lambda: flops.six_nd(float("nan"), 1), "parameters must be finite"),
        (lambda: flops.six_nd(1, -1), "tokens must be at least 0"),
        (lambda: flops.six_nd(1, 1, "selective"), "recompute 'selective' is not one of"),
        (
            lambda: flops.palm_flop_per_token(1, layers=0, heads=1, head_dim=1, sequence=1),
            "layers must be at least 1",
        ),
        (
            lambda: flops.megatron_flop(1, 1, layers=1, hidden=1, vocab=0),
            "vocab must be at least 1",
        ),
        (lambda: budget.training_run(1, 1, 0), "flop_per_s_per_gpu must be above 0"),
        (lambda: budget.training_run(1e50, 1, 1), "flop must be at most 1e"),
        (lambda: budget.training_run(1, 0, 1), "gpus must be at least 1"),
        (lambda: budget.training_run_at(1, 1, 0), "tokens_per_s_per_gpu must be above 0"),
        (lambda: budget.training_run_at(-1, 1, 1), "tokens must be at least 0"),
        (lambda: budget.training_run(1, 1, 1, gpu_hour_usd=-1), "gpu_hour_usd must be at least"),
        (lambda: budget.cost(-1, 1), "gpu_hours must be at least 0"),
        (lambda: budget.utilisation(1, 0, 1, 1), "time_s must be above 0"),
        (lambda: budget.utilisation(1, 1, 1, 0), "peak_flop_per_s must be above 0"),
    ],
)
def test_bad_input_is_explained(call, message):
    with pytest.raises(ValueError, match=message):
        call()
