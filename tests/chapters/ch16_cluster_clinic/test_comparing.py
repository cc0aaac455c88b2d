"""Two runs of a small model in one process: recorded, changed, compared."""

import pytest
import torch
from torch import nn

from course_lib.chapters.ch16_cluster_clinic import comparing
from course_lib.chapters.ch16_cluster_clinic.comparing.recording import read
from course_lib.problem import Problem


class Small(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last = nn.Linear(8, 16), nn.Linear(16, 4)
        self.middle = nn.Sequential(nn.LayerNorm(16), nn.GELU())

    def forward(self, x):
        return self.last(self.middle(self.first(x)))


def update(folder, change=lambda model: None, dtype=torch.float32, model=None):
    model = (model or Small()).to(dtype)
    change(model)
    torch.manual_seed(1)
    x = torch.randn(32, 8).to(dtype)
    with comparing.record(model, folder) as run:
        loss = model(x).float().square().mean()
        run.loss(loss)
        loss.backward()
    return folder


@pytest.fixture(scope="module")
def one(tmp_path_factory):
    return update(tmp_path_factory.mktemp("runs") / "one")


def test_the_order_is_that_in_which_tensors_arise(one):
    (entries,) = read(one)
    order = list(entries)
    outputs = [name for kind, name in order if kind == "output"]
    assert outputs == ["first", "middle.0", "middle.1", "last"]  # not middle: the same tensor
    gradients = [name for kind, name in order if kind == "gradient of the output"]
    assert gradients == outputs[::-1]
    weights = [name for kind, name in order if kind == "gradient of the weight"]
    assert set(weights[:2]) == {"last.weight", "last.bias"}
    assert order.index(("loss", "")) == order.index(("gradient of the output", "last")) - 1
    assert entries["output", "last"].terms == 16
    assert entries["gradient of the weight", "last.weight"].terms == 32


def bigger(factor):
    def change(model):
        model.last.register_forward_hook(lambda *call: factor * call[2])

    return change


@pytest.mark.parametrize(
    ("factor", "dtype", "verdict"),
    [
        (1.001, torch.float32, "more than rounding"),
        (1 + 2e-6, torch.float32, "don't know"),
        (1.001, torch.bfloat16, "rounding"),  # in bf16 nobody can tell
        (1.04, torch.bfloat16, "don't know"),
        (2.0, torch.bfloat16, "more than rounding"),
    ],
)
def test_the_first_tensor_that_differs_is_named(tmp_path, factor, dtype, verdict):
    first = update(tmp_path / "first", dtype=dtype)
    compared = comparing.compare(first, update(tmp_path / "other", bigger(factor), dtype))
    assert compared.verdict == verdict
    if verdict != "rounding":
        assert compared.diverging.title == "output of last"
        assert compared.before.title == "output of middle.1"
        assert "output of last" in compared.report().splitlines()[0]


def test_not_a_number_is_no_rounding_and_bf16_is_judged_as_bf16(tmp_path, one):
    def broken(model):
        model.first.register_forward_hook(lambda *call: call[2] / 0)

    compared = comparing.compare(one, update(tmp_path / "other", broken))
    assert compared.diverging.title == "output of first"
    compared = comparing.compare(one, update(tmp_path / "bf16", dtype=torch.bfloat16))
    assert {tensor.dtype for tensor in compared.tensors} == {"bf16"}
    assert compared.verdict == "rounding"  # the loss, too, which is fp32 in both


def test_wrappers_names_and_missing_tensors(tmp_path, one):
    class Wrapper(nn.Module):
        def __init__(self):
            super().__init__()
            self.module = Small()
            self.extra = nn.Linear(4, 4)

        def forward(self, x):
            return self.module(x)

    other = update(tmp_path / "other", model=Wrapper())
    compared = comparing.compare(one, other)
    assert compared.verdict == "rounding"
    assert compared.missing == tuple(
        f"weight extra.{name} (only in {other})" for name in ("bias", "weight")
    )
    report = compared.report()
    assert "2 could not be compared" in report.splitlines()[0]
    assert "not compared: weight extra.bias" in report and "more" not in report


def test_a_second_pass_is_not_recorded(tmp_path):
    model = Small()
    with comparing.record(model, tmp_path / "run"):
        for scale in (1, 2):
            model(scale * torch.ones(2, 8)).sum().backward()
    (entries,) = read(tmp_path / "run")
    assert torch.equal(entries["output", "first"].value, Small().first(torch.ones(2, 8)))


def test_two_micro_batches_are_compared_only_where_both_runs_made_two(tmp_path):
    """A positions' table has no rows of samples, so that its shape does not show it."""
    for name, sizes in {"one": [32], "two": [16, 16], "again": [16, 16]}.items():
        model = Small()
        model.place = nn.Embedding(4, 8)
        torch.manual_seed(1)
        data = torch.randn(32, 8)
        with comparing.record(model, tmp_path / name) as run:
            for x in data.split(sizes[0]):
                loss = (model(x) + model.place(torch.arange(4)).sum()).square().mean() / len(sizes)
                run.loss(loss)
                loss.backward()
    compared = comparing.compare(tmp_path / "one", tmp_path / "two")
    assert compared.verdict == "rounding"
    assert "gradient of the weight" in {tensor.kind for tensor in compared.tensors}
    assert "output place (1 × in" in " ".join(compared.missing)
    assert comparing.compare(tmp_path / "two", tmp_path / "again").missing == ()


def test_coarse_digits_say_what_they_hide(tmp_path, one):
    def wide(model):
        model.middle[0].eps = 1e-3

    first = update(tmp_path / "first", dtype=torch.bfloat16)
    report = comparing.compare(first, update(tmp_path / "other", wide, torch.bfloat16)).report()
    assert "In bf16 a bug hides that changes a tensor by less than 6e-02" in report
    assert "hides" not in comparing.compare(one, one).report()
    assert comparing.compare(one, update(tmp_path / "fp32", wide)).verdict == "more than rounding"


def test_nothing_is_left_of_the_recording(tmp_path):
    model = Small()
    with pytest.raises(ZeroDivisionError), comparing.record(model, tmp_path / "run"):
        1 / 0  # noqa: B018
    assert not list((tmp_path / "run").iterdir())
    assert not any(module._forward_hooks for module in model.modules())


def test_errors_are_one_sentence(tmp_path, one):
    with pytest.raises(Problem, match="has a record already"):
        comparing.record(Small(), one)
    with pytest.raises(Problem, match=r"has no rank0\.pt"):
        comparing.compare(one, tmp_path)
    (tmp_path / "rank0.pt").write_bytes(b"no record")
    with pytest.raises(Problem, match="is no record of an update"):
        comparing.compare(one, tmp_path)
    with comparing.record(nn.Linear(2, 2), tmp_path / "stranger"):
        pass
    with pytest.raises(Problem, match="no tensor in common"):
        comparing.compare(one, tmp_path / "stranger")
