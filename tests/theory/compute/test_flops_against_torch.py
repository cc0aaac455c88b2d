"""FLOPs against torch's counter, exactly."""

import dataclasses

import reference_modules
import torch
from every import every
from test_flops import DEEPSEEK, LLAMA
from torch.utils.checkpoint import checkpoint, set_checkpoint_early_stop
from torch.utils.flop_counter import FlopCounterMode

from course_lib.scratch.gpt import GPT
from course_lib.theory.compute.flops import training_flops
from course_lib.theory.inputs.models import MODELS
from course_lib.theory.inputs.shape import TransformerShape

MIXTRAL = dataclasses.replace(LLAMA, head_dim=4, experts=5, top_k=2)
LLAMA_SIZES = {"layers": 3, "hidden": 24, "heads": 6, "kv_heads": 2, "ffn": 40, "vocab": 100}


def counted(module, sequences, sequence, device="meta"):
    """FLOP that torch counts in one forward and backward pass, and in the forward alone."""
    tokens = torch.zeros(sequences, sequence, dtype=torch.long, device=device)
    with FlopCounterMode(display=False) as counter:
        loss = module(tokens).sum()
        forward = counter.get_total_flops()
        loss.backward()
    return counter.get_total_flops(), forward


@every(("name", "sequences"), [("gpt2-124m", 1), ("gpt2-355m", 3)])
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


@every("recompute", ["selective", "full"])
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


@every("heads", [1, 4])
def test_flash_attention_multiplies_queries_and_keys_again(heads):
    # torch counts 4 products of the scores' size for 2 forward ones, and 1 for the recomputation.
    shape = (2, heads, 16, 8)
    flash = torch.utils.flop_counter.sdpa_backward_flop_count(*[shape] * 4)
    forward = torch.utils.flop_counter.sdpa_flop_count(*[shape] * 3)
    model = TransformerShape(1, 8 * heads, heads, 8, 10, 16)
    predicted = training_flops(model, 2, 16, attention="flash")
    assert predicted.scores_flop + predicted.recompute_flop == forward + flash
