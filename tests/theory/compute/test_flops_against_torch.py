"""FLOPs against torch's counter, exactly."""

import dataclasses

import torch
from every import every
from reference_modules import GroupedAttention, LatentAttention, Mixture, SwiGLU, attend, decoder
from test_flops import DEEPSEEK, LLAMA
from torch.utils.checkpoint import checkpoint, set_checkpoint_early_stop
from torch.utils.flop_counter import FlopCounterMode

from course_lib.scratch.gpt import GPT
from course_lib.theory.compute.flops import training_flops
from course_lib.theory.inputs.models import MODELS
from course_lib.theory.inputs.shape import TransformerShape

MIXTRAL = dataclasses.replace(LLAMA, head_dim=4, experts=5, top_k=2)
GPT2 = MODELS["gpt2-124m"]


def counted(module, sequences, sequence, device="meta"):
    """FLOP that torch counts in one forward and backward pass, and in the forward alone."""
    tokens = torch.zeros(sequences, sequence, dtype=torch.long, device=device)
    with FlopCounterMode(display=False) as counter:
        loss = module(tokens).sum()
        forward = counter.get_total_flops()
        loss.backward()
    return counter.get_total_flops(), forward


def llama():
    return decoder(3, 24, 100, lambda: GroupedAttention(24, 6, 2, 8), lambda _: SwiGLU(24, 40))


def mixtral():
    def mlp(_):
        return Mixture(24, 40, experts=5, top_k=2, shared=0)

    return decoder(3, 24, 100, lambda: GroupedAttention(24, 6, 2, 4), mlp)


def deepseek():
    def mlp(layer):
        return Mixture(24, 12, experts=5, top_k=2, shared=2) if layer else SwiGLU(24, 40)

    return decoder(3, 24, 100, lambda: LatentAttention(24, 6, 10, 8, 4, 2, 5), mlp)


def gpt():
    return GPT(GPT2.layers, GPT2.hidden, GPT2.heads, GPT2.vocab, GPT2.context)


# Experts need tokens that are really routed, not on the meta device.
@every(
    ("build", "shape", "sequence", "device"),
    [
        (gpt, GPT2, 512, "meta"),
        (llama, LLAMA, 16, "meta"),
        (mixtral, MIXTRAL, 16, "cpu"),
        (deepseek, DEEPSEEK, 16, "cpu"),
    ],
)
def test_a_model_has_the_flop_that_torch_counts(build, shape, sequence, device):
    torch.manual_seed(1)
    with torch.device(device):
        module = build()
    predicted = training_flops(shape, 2, sequence)
    assert counted(module, 2, sequence, device) == (predicted.model_flop, predicted.forward_flop)


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
        return attend(q, k, v)


@every("recompute", ["selective", "full"])
def test_recomputation_equals_torch_s_counter(recompute):
    with torch.device("meta"):
        module = llama()
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
