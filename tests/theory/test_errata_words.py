"""Claims of the study notes about batches, frameworks and words, by number.

Each docstring is the claim. Where a claim is a quantity, the right one is computed; where it is a
recorded fact, the record is `errata.json`, and the test checks what in it can be checked.
"""

import json
import re
from datetime import date
from pathlib import Path

import pytest
import torch

from course_lib.theory.compute import budget
from course_lib.theory.inputs.hardware import accelerator
from course_lib.theory.inputs.job import Job
from course_lib.theory.inputs.layout import Layout
from course_lib.theory.inputs.models import model
from course_lib.theory.inputs.recipe import Recipe
from course_lib.theory.memory.activations import layer_activation_bytes
from course_lib.theory.memory.states import local_parameters
from course_lib.theory.network import collectives
from course_lib.theory.pipelines.simulation import timeline
from course_lib.theory.step import batching
from course_lib.theory.step.batching import Batching

ROOT = Path(__file__).parents[2]
RECORD = {
    entry["number"]: entry
    for entry in json.loads((Path(__file__).parent / "errata.json").read_text(encoding="utf-8"))
}
LLAMA, MIXTRAL = model("llama2-70b"), model("mixtral-8x7b")


def first_step(optimizer, gradient, **options):
    """The change that one step of a torch optimizer makes to a weight of 1."""
    weight = torch.nn.Parameter(torch.ones(1, dtype=torch.float64))
    weight.grad = torch.full_like(weight, gradient)
    optimizer([weight], lr=0.1, **options).step()
    return weight.item() - 1


def test_erratum_12():
    """Claim: the gradient is the change of the parameters.

    The change is -lr · f(gradient, states).
    """
    assert first_step(torch.optim.SGD, 5.0) == pytest.approx(-0.1 * 5.0) != 5.0
    large, small = (first_step(torch.optim.Adam, gradient) for gradient in (5.0, 0.01))
    assert large == pytest.approx(small, rel=1e-5) == pytest.approx(-0.1, rel=1e-5)


def test_erratum_14():
    """Claim: a mini-batch is what one GPU passes forward at a time.

    That is a micro-batch; one update is made of accumulation · dp of them.
    """
    cut = Batching(10**6, micro_batch=4, accumulation=8, nodes=2, gpus_per_node=8)
    assert cut.global_batch == 4 * 8 * 16 == 512 != cut.micro_batch


def test_erratum_17():
    """Claim: big batches hurt convergence and accuracy.

    A tenth of the critical batch costs 10 % more samples, the critical batch twice as many, and
    only beyond it do they grow in proportion.
    """
    small, critical, huge = (batching.batch_cost(part, 1.0) for part in (0.1, 1.0, 100.0))
    assert small.samples == pytest.approx(1.1)
    assert (critical.samples, critical.steps) == (2, 2)
    assert huge.samples == pytest.approx(101) and huge.steps == pytest.approx(1.01)


def test_erratum_31():
    """Claim: global batch = accumulation · nodes · GPUs per node · micro-batch.

    That holds with data parallelism alone.
    """
    sizes = {"samples": 10**6, "micro_batch": 4, "accumulation": 8, "gpus_per_node": 8}
    assert Batching(**sizes, nodes=2).global_batch == 8 * 2 * 8 * 4
    spread = Batching(**sizes, nodes=8, tp=8, pp=4)
    assert spread.dp == 2
    assert spread.global_batch == 64 != 8 * 8 * 8 * 4


def test_erratum_32():
    """Claim: 1000 / 10 = 100 steps; micro-batch 5 and accumulation 2: 200 micro-steps. Right."""
    assert Batching(1000, micro_batch=10).epoch().updates == 100
    halves = Batching(1000, micro_batch=5, accumulation=2).epoch()
    assert (halves.micro_steps, halves.updates) == (200, 100)


def test_erratum_33():
    """Claim: gradient accumulation reduces the training steps.

    It reduces the updates. The last window may be short, and BatchNorm sees the small batches.
    """
    plain, summed = (Batching(1010, 5, accumulation=n).epoch() for n in (1, 4))
    assert plain.micro_steps == summed.micro_steps == 202
    assert (plain.updates, summed.updates, summed.last_window) == (202, 51, 2)
    samples = torch.arange(8.0).reshape(8, 1)
    norm = torch.nn.BatchNorm1d(1, affine=False)
    parts = torch.cat([norm(part) for part in samples.chunk(2)])
    assert not torch.allclose(norm(samples), parts)


def test_erratum_33_the_loss_is_divided_by_tokens():
    """Claim: divide by the number of micro-batches. With unequal lengths that is another loss."""
    lengths, losses = [1, 7], torch.tensor([8.0, *[1.0] * 7])
    means = [part.mean() for part in losses.split(lengths)]
    assert sum(means) / len(means) == 4.5
    assert sum(mean * n for mean, n in zip(means, lengths, strict=True)) / sum(lengths) == 1.875
    assert losses.mean() == 1.875


def test_erratum_35():
    """Claim: a smaller batch needs a smaller learning rate.

    In proportion for SGD, by the square root for Adam and LAMB.
    """
    rates = {rule: batching.scaled_learning_rate(0.1, 256, 64, rule) for rule in ("linear", "sqrt")}
    assert rates == {"linear": pytest.approx(0.025), "sqrt": pytest.approx(0.05)}


def test_erratum_38():
    """Claim: epoch = batch size · iterations.

    The samples of an epoch are, over all ranks and accumulated micro-batches; tails are dropped or
    filled up.
    """
    sizes = {"samples": 1003, "micro_batch": 5, "accumulation": 2, "gpus_per_node": 4}
    whole, cut = (Batching(**sizes, drop_last=drop) for drop in (False, True))
    assert cut.epoch().updates * cut.global_batch == 1000 == 1003 - cut.epoch().dropped
    assert whole.epoch().samples_per_rank * whole.dp == 1004 == 1003 + whole.epoch().repeated
    assert cut.epoch().updates * cut.micro_batch == 125 != 1000


def test_erratum_39():
    """Claim: Accelerate supports PyTorch and TensorFlow. The record: PyTorch only."""
    entry = RECORD[39]
    assert "TensorFlow" in entry["claim"] and "TensorFlow" not in entry["right"]
    assert "PyTorch only" in entry["right"]


def test_erratum_40():
    """Claim: DeepSpeed was used for GPT-3. The record: for MT-NLG 530B, BLOOM and GLM-130B."""
    right = RECORD[40]["right"]
    assert all(name in right for name in ("Not for GPT-3", "MT-NLG 530B", "BLOOM", "GLM-130B"))
    assert model("mt-nlg-530b").parameters().total == pytest.approx(530e9, rel=1e-3)


def test_erratum_46():
    """Claim: functional languages need less memory for temporaries.

    Working in place and recomputing save it, and PyTorch does both.
    """
    values = torch.ones(4)
    assert torch.relu(values).data_ptr() != values.data_ptr()
    assert torch.relu_(values).data_ptr() == values.data_ptr()
    kept, again = (
        layer_activation_bytes(Job(LLAMA, Recipe(recompute=how), sequence=4096))
        for how in ("none", "full")
    )
    assert again < kept / 10


def test_erratum_47():
    """Claim: nvidia-smi -r is for looking; is_nccl_available() tells that a GPU is NVIDIA's.

    It resets the GPU, so no page shows it as a command. The vendor is in torch.version.
    """
    command = re.compile(r"^[\s#!$>]*(sudo\s+)?nvidia-smi\s+(-r\b|--gpu-reset)", re.MULTILINE)
    pages = [*ROOT.glob("course_lib/**/*.py"), ROOT / "README.md"]
    assert len(pages) > 5
    assert not [page.name for page in pages if command.search(page.read_text(encoding="utf-8"))]
    assert command.search("! sudo nvidia-smi -r") and not command.search("nvidia-smi topo -m")
    assert hasattr(torch.version, "hip") and hasattr(torch.version, "cuda")


def arxiv_month(text):
    """Year and month of the first arXiv number in a text: 2304.11277 is of April 2023."""
    year, month = re.search(r"arXiv:(\d\d)(\d\d)\.", text).groups()
    return 2000 + int(year), int(month)


def test_erratum_49():
    """Claim: FSDP was proposed in September 2023.

    The record: PyTorch 1.11, March 2022; the paper's number is of April 2023.
    """
    right = RECORD[49]["right"]
    assert "PyTorch 1.11 in March 2022" in right
    assert arxiv_month(right) == (2023, 4) < (2023, 9)
    from torch.distributed.fsdp import FullyShardedDataParallel

    assert FullyShardedDataParallel.__module__.startswith("torch.distributed")


def test_erratum_50():
    """Claim: YaFSDP is of May 2024. Its first commit is; it was announced in June."""
    days = re.findall(r"\d{4}-\d\d-\d\d", RECORD[50]["right"])
    first, announced = map(date.fromisoformat, days)
    assert (first.year, first.month) == (2024, 5)
    assert (announced.year, announced.month) == (2024, 6)


def test_erratum_54():
    """Claim: 150 GPUs fewer save 0.5 to 1.5 million USD a month.

    At 2 USD an hour they cost 0.22 million; the claim takes 4.6 to 13.7 USD an hour.
    """
    hours = 150 * 730
    assert budget.cost(hours, 2.0) == 219_000 < 500_000
    assert 500_000 / hours == pytest.approx(4.57, abs=0.01)
    assert 1_500_000 / hours == pytest.approx(13.7, abs=0.01)
    assert "vendor" in RECORD[54]["right"]


def test_erratum_58():
    """Claim: model parallelism is deprecated, use data and pipeline parallelism.

    Tensor parallelism is part of torch, and pays on NVLink for more GPUs than a node has.
    """
    from torch.distributed.tensor import parallel

    assert callable(parallel.parallelize_module) and parallel.ColwiseParallel
    chip = accelerator("H100-SXM")
    link = chip.inside.bytes_per_s
    assert collectives.layer_tp_reach(LLAMA.hidden, chip.peak_flop_per_s, link) > 8


def test_erratum_60():
    """Claim: in model parallelism each worker holds a full copy. That is data parallelism."""
    total = LLAMA.parameters().total
    copy = local_parameters(LLAMA, Layout(dp=8)).total
    part = local_parameters(LLAMA, Layout(tp=8)).total
    assert copy == total
    assert part == pytest.approx(total / 8, rel=1e-3)


def test_erratum_61():
    """Claim: a pipeline combines model and data parallelism; mixture of experts is parallelism.

    A pipeline with one replica works; a mixture of experts can live on one GPU, and expert
    parallelism is what spreads it.
    """
    layout = Layout(pp=8, accumulation=16)
    assert (layout.dp, layout.world) == (1, 8)
    assert layout.chunk_layers(LLAMA) == (10,) * 8
    assert timeline("1f1b", 8, 16).makespan < timeline("naive", 8, 16).makespan
    alone, spread = (
        local_parameters(MIXTRAL, one).experts for one in (Layout(), Layout(dp=8, ep=8))
    )
    assert alone == MIXTRAL.parameters().experts == 8 * spread
