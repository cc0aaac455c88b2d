"""Parameter counts against torch modules on the meta device."""

import dataclasses

import reference_modules
import torch
from every import every
from test_shape import DEEPSEEK

from course_lib.scratch.gpt import GPT
from course_lib.theory.inputs.models import MODELS
from course_lib.theory.inputs.shape import LatentAttention


@every("name", ["gpt2-124m", "gpt2-355m", "gpt2-1.5b"])
def test_counts_equal_those_of_a_torch_module(name):
    shape = MODELS[name]
    with torch.device("meta"):
        module = GPT(shape.layers, shape.hidden, shape.heads, shape.vocab, shape.context)
    count = shape.parameters()
    assert count.total == sum(p.numel() for p in module.parameters())
    assert count.attention == sum(
        p.numel() for block in module.blocks for p in block.attention.parameters()
    )
    assert count.mlp == sum(p.numel() for block in module.blocks for p in block.mlp.parameters())


def numel(modules):
    return sum(p.numel() for module in modules for p in module.parameters())


def test_llama_3_equals_a_torch_module():
    shape = MODELS["llama3-8b"]
    with torch.device("meta"):
        module = reference_modules.llama(32, 4096, 32, 8, 128, 14336, 128256)
    count = shape.parameters()
    assert count.total == numel([module])
    assert count.attention == numel(layer.attention for layer in module.layers)
    assert count.mlp == numel(layer.mlp for layer in module.layers)
    assert (count.embedding, count.head) == (numel([module.embedding]), numel([module.head]))


def test_mixtral_equals_a_torch_module():
    with torch.device("meta"):
        module = reference_modules.mixtral(32, 4096, 32, 8, 14336, 32000, experts=8, top_k=2)
    count = MODELS["mixtral-8x7b"].parameters()
    assert count.total == numel([module])
    assert count.router == numel(layer.mlp.router for layer in module.layers)
    assert count.experts == numel(e for layer in module.layers for e in layer.mlp.experts)
    assert count.chosen_experts == numel(e for la in module.layers for e in la.mlp.experts[:2])
    assert count.active == count.total - numel(
        e for la in module.layers for e in la.mlp.experts[2:]
    )


def test_deepseek_v3_equals_a_torch_module():
    """5 of its 61 layers are built: 256 experts in each take torch a while."""
    built = 5
    with torch.device("meta"):
        module = reference_modules.deepseek(
            built, 3, 7168, 128, 18432, 2048, 129280, 256, 8, 1, latent=(1536, 512, 128, 64, 128)
        )
    mixtures = [layer.mlp for layer in module.layers[3:]]
    whole = MODELS["deepseek-v3"]
    count = dataclasses.replace(whole, layers=built).parameters()
    assert count.total == numel([module])
    assert count.mlp == numel(layer.mlp for layer in module.layers[:3])
    assert count.experts == numel(mixture.experts for mixture in mixtures)
    assert count.shared_experts == numel(mixture.shared for mixture in mixtures)
    assert count.active == count.total - numel(m.experts[8:] for m in mixtures)
    norms = [part for part in module.modules() if isinstance(part, torch.nn.RMSNorm)]
    assert count.norms == numel(norms)
    others = (whole.layers - built) * numel([module.layers[-1]])
    assert whole.parameters().total == count.total + others == 671_026_404_352


def test_queries_need_not_pass_a_latent():
    # As in DeepSeek-V2-Lite: arXiv:2405.04434, appendix B.
    latent = (None, 8, 4, 2, 6)
    module = reference_modules.deepseek(3, 1, 16, 4, 40, 12, 50, 6, 2, 2, latent)
    shape = dataclasses.replace(DEEPSEEK, mla=LatentAttention(*latent))
    assert shape.parameters().total == numel([module])
