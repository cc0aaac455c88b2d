"""Three kinds of parallelism on one mesh: where ranks stand, and equal to one process."""

import pytest
import torch
import torch.distributed as dist

from course_lib import launch
from course_lib.scratch.accumulation import accumulate
from course_lib.scratch.gpt import GPT
from course_lib.scratch.pipeline import Pipeline
from course_lib.scratch.tensor import whole_gradients
from course_lib.scratch.three_d import Mesh, ThreeD, axes
from course_lib.theory.pipelines.schedules import schedule
from tests.chapters.ch11_pipelines.wrong_pipeline import Closures

VOCAB, HIDDEN, SEQUENCE = 11, 16, 6  # an odd vocabulary: one row of padding over tp 2


def gpt(layers):
    torch.manual_seed(0)
    return GPT(layers, HIDDEN, 4, VOCAB, SEQUENCE)


def batch(samples):
    text = torch.randint(VOCAB, (samples, SEQUENCE + 1), generator=torch.manual_seed(1))
    return text[:, :-1], text[:, 1:]


def on_mesh(degrees, layers, plan, samples, pipeline=Pipeline):
    launch.init()
    mesh = Mesh(*degrees)
    ours = ThreeD(gpt(sum(layers)), mesh, layers, plan.orders, pipeline=pipeline)
    assert type(ours.pipeline) is pipeline
    loss = ours.run(*batch(samples), plan.micro_batches)
    dist.all_reduce(loss)
    one = gpt(sum(layers))
    expected = accumulate(one, [batch(samples)])
    gradients = {name: p.grad for name, p in one.named_parameters()}
    gradients["head.weight"] = gradients["embedding.weight"]
    gaps = [
        float((gradient - gradients[name]).abs().max())
        for part in ours.parts
        for name, gradient in whole_gradients(part, ours.region).items()
    ]
    return max(gaps), abs(float(loss - expected)), mesh.place, sorted(set(axes(mesh).values()))


CASES = [
    ((2, 2, 1), [2], ("naive", 1, 2, 1)),
    ((1, 2, 2), [2, 1, 1, 1], ("interleaved", 2, 2, 2)),
]


@pytest.mark.parametrize(("degrees", "layers", "plan"), CASES, ids=[str(c[0]) for c in CASES])
def test_equal_to_one_process(degrees, layers, plan):
    dp, tp, pp = degrees
    results = launch.run(on_mesh, degrees, layers, schedule(*plan), 12, ranks=dp * tp * pp)
    for gap, loss_gap, _, names in results:
        assert gap < 2e-7
        assert loss_gap < 1e-6
        assert names == ["dp", "pp", "tp"]
    places = [place for _, _, place, _ in results]
    assert places == [(p, d, t) for p in range(pp) for d in range(dp) for t in range(tp)]


def test_another_pipeline_takes_its_place():
    """One that a learner could have built: right in another form."""
    plan = schedule("1f1b", 2, 3)
    for gap, loss_gap, *_ in launch.run(on_mesh, (1, 2, 2), [2, 1], plan, 12, Closures, ranks=4):
        assert gap < 2e-7 and loss_gap < 1e-6
