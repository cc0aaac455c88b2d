"""The judge of all versions: refuses what is not equal to one process, or not as predicted."""

import pickle
import re

import pytest
import torch.distributed as dist
from together import explained, sentence

from course_lib import launch
from course_lib.demos.shared.comparison import Comparison
from course_lib.demos.shared.prediction import calls
from course_lib.demos.shared.result import Fact, Result
from course_lib.demos.shared.trainee import Trainee
from course_lib.demos.shared.training import Training, mean_loss
from course_lib.trace import Trace

TRAINING = Training(model="1x16x2", steps=4, batch=4, sequence=8)


class Plain(Trainee):
    """Data parallelism in its shortest form: one all-reduce for each gradient."""

    name = "plain"

    def __init__(self, training, rank, mean=True, forget=()):
        model = training.build(rank.device)
        super().__init__(model, training.optimizer(model.parameters()))
        self.rank, self.mean, self.forget = rank, mean, forget

    def backward(self, batch):
        rows = [part.chunk(self.rank.world)[self.rank.rank] for part in batch]
        loss = mean_loss(self.model, rows) / (self.rank.world if self.mean else 1)
        loss.backward()
        for name, parameter in self.model.named_parameters():
            if name not in self.forget:
                dist.all_reduce(parameter.grad)
        return loss


def judged(options, sent=None, stored=None):
    """`sent`: calls and bytes by operation."""
    comparison = Comparison(TRAINING)
    told = sent and Trace(one for name, total in sent.items() for one in calls(name, *total))
    comparison.follow(Plain(TRAINING, comparison.rank, **options), told, stored)
    return comparison.result("plain")


def gradient_bytes():
    parameters = TRAINING.shape().parameters().total
    return 4 * parameters


@pytest.mark.parametrize("ranks", [1, 4])
def test_an_equal_version_passes(ranks):
    tensors = len(list(TRAINING.build().parameters()))
    sent = {"all-reduce": (tensors, gradient_bytes())} if ranks > 1 else {}
    stored = {
        "weights": gradient_bytes(),
        "gradients": gradient_bytes(),
        "optimizer": 2 * gradient_bytes(),
        "inputs and labels": 0,
    }
    result, *others = launch.run(judged, {}, sent, stored, ranks=ranks)
    version = result.versions[0]
    assert version.sent == sent
    assert version.stored == stored
    assert version.losses[-1] < version.losses[0]
    assert all(other.versions[0].losses == version.losses for other in others)
    assert f"{gradient_bytes():,} B" in result.report()


REFUSED = [  # a version's options, what is predicted that it sends, the sentence
    ({"mean": False}, None, "the loss of update 0 differs from one process"),
    ({"forget": ["norm.bias"]}, None, "the gradient differs from one process|loss of update"),
    ({}, {"all-reduce": (1, 1)}, r"plain: sent: all-reduce is .* predicted"),
    ({}, {"all-gather": (1, 1)}, "all-gather is None, predicted"),
]


def refusals():
    return [sentence(judged, options, sent) for options, sent, _ in REFUSED]


def test_what_is_unequal_or_not_sent_as_predicted_is_refused():
    for sentences in launch.run(refusals, ranks=2):
        for (*case, message), said in zip(REFUSED, sentences, strict=True):
            assert re.search(message, said), f"{case}: {said}"


def test_a_bad_training_is_explained():
    explained(
        Training,
        [
            ({"model": "2x64"}, "neither one of tiny"),
            ({"model": "2x0x4"}, "neither one of tiny"),
            ({"batch": 0}, "batch must be at least 1"),
            ({"learning_rate": 0}, "learning_rate must be above 0"),
            ({"seed": -1}, "seed must be at least 0"),
        ],
    )


@pytest.mark.parametrize(
    ("fact", "message"),
    [
        (Fact("x: ranks", 1, 2), "x: ranks is 1, predicted 2"),
        (Fact("x: sent", {"a": 1}, {"a": 1, "b": 2}), "x: sent: b is None, predicted 2"),
        (
            Fact("x: the loss", [1.0, 0.48], [1.0, 0.5], tolerance=1e-4),
            "the loss of update 1 differs",
        ),
        (Fact("x: the gradient", float("nan"), tolerance=1.0), "gradient differs from one process"),
        (Fact("x", 0.3, tolerance=0.2, beside="fp32"), "x differs from fp32 by 3.0e-01"),
    ],
)
def test_a_false_fact_ends_the_demo(fact, message):
    for result in ({"facts": [fact]}, {}):
        with pytest.raises(AssertionError, match=message):
            Result(*([] if result else [fact]), **result)


def test_a_result_is_its_lines_and_all_that_has_a_name():
    result = Result("first", Fact("bytes", 2000, 2000, "B"), found=[1, 2])
    assert result.report() == "first\nbytes: 2,000 B, predicted 2,000"
    assert pickle.loads(pickle.dumps(result)).found == [1, 2]
