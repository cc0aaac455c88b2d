"""Three kinds of parallelism on one mesh: where ranks stand, and equal to one process."""

import torch
import torch.distributed as dist

from course_lib import launch
from course_lib.scratch.accumulation import accumulate
from course_lib.scratch.gpt import GPT
from course_lib.scratch.tensor import whole_gradients
from course_lib.scratch.three_d import Mesh, ThreeD
from course_lib.theory.pipelines.schedules import schedule
from tests.chapters.ch11_pipelines.wrong_pipeline import Closures

VOCAB, HIDDEN, SEQUENCE = 11, 16, 6  # an odd vocabulary: one row of padding over tp 2
LAYERS = [2, 1]


def gpt():
    torch.manual_seed(0)
    return GPT(sum(LAYERS), HIDDEN, 4, VOCAB, SEQUENCE)


def on_mesh():
    """With a pipeline that a learner could have built: right in another form."""
    launch.init()
    text = torch.randint(VOCAB, (12, SEQUENCE + 1), generator=torch.manual_seed(1))
    batch, plan = (text[:, :-1], text[:, 1:]), schedule("1f1b", 2, 3)
    ours = ThreeD(gpt(), Mesh(1, 2, 2), LAYERS, plan.orders, pipeline=Closures)
    assert type(ours.pipeline) is Closures
    loss, one = ours.run(*batch, plan.micro_batches), gpt()
    dist.all_reduce(loss)
    expected = accumulate(one, [batch])
    gradients = {name: p.grad for name, p in one.named_parameters()}
    gradients["head.weight"] = gradients["embedding.weight"]
    gaps = [
        float((gradient - gradients[name]).abs().max())
        for part in ours.parts
        for name, gradient in whole_gradients(part, ours.region).items()
    ]
    return max(gaps), abs(float(loss - expected))


def test_a_pipeline_of_another_form_is_one_process_as_well():
    for gap, loss_gap in launch.run(on_mesh, ranks=4):
        assert gap < 2e-7 and loss_gap < 1e-6
