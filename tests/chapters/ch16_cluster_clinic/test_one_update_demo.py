"""One update, written down by real ranks, is judged: right ones are rounding, bugs are found."""

import pytest
from together import runs

from course_lib import cli
from course_lib.chapters.ch16_cluster_clinic import comparing
from course_lib.chapters.ch16_cluster_clinic.demos.one_update import FAULTS

SMALL = {"model": "2x16x2", "sequence": 16, "batch": 4}
RIGHT = {
    f"{technique} {precision}": {"technique": technique, "precision": precision}
    for technique in ("tp", "sp", "ddp", "fsdp")
    for precision in ("fp32", "bf16")
} | {"tp fp64": {"technique": "tp", "precision": "fp64"}}
BROKEN = {
    f"{technique} {name}": {"technique": technique, "fault": name}
    for name, fault in FAULTS.items()
    for technique in fault.techniques
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """All runs on two ranks, in one launch; beside them those of one process."""
    folder = tmp_path_factory.mktemp("runs")
    one = {name: {"precision": name} for name in ("fp32", "fp64", "bf16")}
    one["dropout"] = {"dropout": 0.1}
    for ranks, cases in ((1, one), (2, RIGHT | BROKEN)):
        for key, case in cases.items():
            case["folder"] = str(folder / key)
            if case.get("fault") == "seed":
                case["dropout"] = 0.1
        runs("one_update", cases, ranks, **SMALL)
    return folder


@pytest.mark.parametrize("run", RIGHT)
def test_a_right_run_is_rounding(folder, run):
    compared = comparing.compare(folder / run.split()[1], folder / run)
    assert compared.verdict == "rounding", compared.report()
    assert any(tensor.measured > 0 for tensor in compared.tensors)
    assert not compared.missing


@pytest.mark.parametrize("run", BROKEN)
def test_the_tensor_in_which_a_bug_first_shows_is_named(folder, run):
    name = run.split()[1]
    one = folder / ("dropout" if name == "seed" else "fp32")
    compared = comparing.compare(one, folder / run)
    assert compared.verdict == "more than rounding"
    first, fault = compared.diverging, FAULTS[name]
    assert (first.kind, first.name) == (fault.kind, fault.name), compared.report()
    if name in LOOKS:
        assert LOOKS[name] in first.looks_like


LOOKS = {
    "no_f": "the sum over the ranks is right: an all-reduce is missing",
    "no_g": "right, but for a bias: an all-reduce is missing",
    "g_twice": "2 times what is expected",
    "bias": "a bias is added once for each rank",
    "weights": "only the part of rank 1 is wrong",
    "scale": "√2 times",
    "seed": "the ranks do not agree",
    "norms": "the sum over the ranks is right",
    "places": "only the part of rank 1 is wrong",
    "no_average": "the mean over the ranks is right",
    "summed": "2 times",
}


def test_two_kinds_of_cuts_at_once_are_read(folder, tmp_path):
    cases = {
        name: {"folder": str(tmp_path / name), "technique": "tp_ddp", "precision": name}
        for name in ("fp32", "bf16")
    }
    runs("one_update", cases, 4, **SMALL)
    for name in cases:
        compared = comparing.compare(folder / name, tmp_path / name)
        assert compared.verdict == "rounding", compared.report()
        assert not compared.missing
        read = {tensor.read_as for tensor in compared.tensors}
        assert "cut along dimension 2, in 3 parts, on each 2 ranks" in read


def test_the_command_says_it_and_has_a_code(folder, capsys):
    assert cli.main(["compare", str(folder / "fp32"), str(folder / "tp fp32")]) == 0
    assert capsys.readouterr().out.startswith("Rounding: all ")
    assert cli.main(["compare", str(folder / "fp32"), str(folder / "tp no_f")]) == 1
    said = capsys.readouterr().out
    assert "the gradient of the output of blocks.1.norm2" in said.splitlines()[0]
    assert cli.main(["compare", str(folder / "tp fp32"), str(folder / "fp32")]) == 2
    assert "give the one of a single process first" in capsys.readouterr().err


def test_a_folder_of_other_ranks_is_refused(folder, tmp_path, capsys):
    for rank, run in enumerate(("tp fp32", "bf16")):
        source = folder / run / "rank0.pt"
        (tmp_path / f"rank{rank}.pt").write_bytes(source.read_bytes())
    assert cli.main(["compare", str(folder / "fp32"), str(tmp_path)]) == 2
    assert "mixes runs on different numbers of ranks" in capsys.readouterr().err
