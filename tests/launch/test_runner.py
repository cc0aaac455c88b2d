"""What `launch.run` gives back when all goes well."""

import os
import sys
import threading
import time
from pathlib import Path

import pytest
from leftovers import BUSY_S

from course_lib import launch


def test_the_function_runs_inside_a_process_group_and_results_come_by_rank() -> None:
    import torch

    offset = 10.0

    def sum_over_ranks(own: torch.Tensor) -> tuple[launch.Rank, list[float]]:
        import torch.distributed as dist

        rank = launch.init()
        total = own + offset * rank.rank
        dist.all_reduce(total)
        time.sleep(0.1 * (1 - rank.rank))  # the last rank is the first to finish
        return launch.init(), total.tolist()

    results = launch.run(sum_over_ranks, torch.tensor([1.0, 2.0]))
    assert [total for _, total in results] == [[12.0, 14.0]] * 2
    found = [(r.rank, r.world, r.local_rank, str(r.device), r.backend) for r, _ in results]
    assert found == [(rank, 2, rank, "cpu", "gloo") for rank in (0, 1)]


def test_ranks_share_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)

    def threads() -> tuple[int, str]:
        import torch

        return torch.get_num_threads(), os.environ["OMP_NUM_THREADS"]

    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    expected = max(1, cores // 2)
    assert launch.run(threads) == [(expected, str(expected))] * 2
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    assert launch.run(threads, ranks=1) == [(1, "1")]


@pytest.mark.skipif(not Path("/proc").exists(), reason="looks into /proc")
def test_threads_of_ranks_do_not_spin() -> None:
    def when_torch_was_loaded() -> list[bytes]:  # later changes have no effect on OpenMP
        return Path("/proc/self/environ").read_bytes().split(b"\0")

    assert b"OMP_WAIT_POLICY=PASSIVE" in launch.run(when_torch_was_loaded, ranks=1)[0]


def test_ranks_find_what_the_parent_finds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "found_late.py").write_text("number = 7\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "argv", ["program", "--option"])
    monkeypatch.setenv("TMPDIR", str(tmp_path))

    def look() -> tuple[int, str, list[str], str]:
        import tempfile

        import found_late

        return found_late.number, os.getcwd(), sys.argv, tempfile.gettempdir()

    assert launch.run(look, ranks=1) == [(7, str(tmp_path), ["program", "--option"], str(tmp_path))]


def test_lines_are_labelled_and_in_order(capfd: pytest.CaptureFixture[str]) -> None:
    def talk() -> None:
        rank = launch.init().rank
        for number in range(50):
            print(f"line {number} of {rank}")
        print("straße 你好")
        print("10 %\r50 %\r100 %")  # of a progress bar the last state
        print("no end of line", end="")

    launch.run(talk)
    printed = capfd.readouterr()
    for rank in (0, 1):
        label = f"[rank {rank}] "
        own = [line for line in printed.out.splitlines() if line.startswith(label)]
        expected = [f"line {n} of {rank}" for n in range(50)] + [
            "straße 你好",
            "100 %",
            "no end of line",
        ]
        assert own == [label + line for line in expected]
    assert len(printed.out.splitlines()) == 106
    assert printed.err == ""
    launch.run(talk, stream=False)
    assert capfd.readouterr() == ("", "")


def test_output_is_shown_while_the_ranks_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = tmp_path / "seen"
    monkeypatch.setattr("builtins.print", lambda text, **_: seen.write_text(text))

    def talk() -> None:
        os.write(1, b"early\n")
        while not seen.exists():
            time.sleep(0.01)

    launch.run(talk, ranks=1, timeout_s=BUSY_S)
    assert seen.read_text() == "[rank 0] early\n"


def test_five_megabytes_of_output_block_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    def shout() -> str:
        for _ in range(5_000):
            print("x" * 999)
        return "done"

    assert launch.run(shout, ranks=2, timeout_s=BUSY_S) == ["done", "done"]
    assert capsys.readouterr().out.count("x" * 999) == 10_000


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere workers cannot take a cell's class")
def test_a_data_loader_with_workers_and_a_dataset_of_the_caller() -> None:
    class Squares:
        def __len__(self) -> int:
            return 20

        def __getitem__(self, index: int) -> int:
            return index**2

    def own_samples() -> list[int]:
        from torch.utils.data import DataLoader
        from torch.utils.data.distributed import DistributedSampler

        sampler = DistributedSampler(Squares(), shuffle=False)
        loader = DataLoader(Squares(), 2, sampler=sampler, num_workers=2, persistent_workers=True)
        return [sample for batch in loader for sample in batch.tolist()]

    even = [index**2 for index in range(0, 20, 2)]
    odd = [index**2 for index in range(1, 20, 2)]
    assert launch.run(own_samples, timeout_s=BUSY_S) == [even, odd]


def test_a_rank_that_ends_at_once_disturbs_no_other(capfd: pytest.CaptureFixture[str]) -> None:
    # Until all ranks have met, one that leaves makes gloo complain in those that still connect.
    def leave() -> None:
        if launch.init().rank == 3:
            os._exit(1)
        time.sleep(60)

    for _ in range(2):
        with pytest.raises(launch.RankFailed, match="rank 3 ended with exit code 1"):
            launch.run(leave, ranks=4)
    assert capfd.readouterr() == ("", "")


def test_ddp_ends_cleanly_every_time() -> None:
    # Without the order that `finish` keeps, gloo aborts in a fair share of such runs.
    def train() -> float:
        import torch
        from torch.nn.parallel import DistributedDataParallel

        torch.manual_seed(0)
        model = DistributedDataParallel(torch.nn.Linear(64, 64))
        optimizer = torch.optim.AdamW(model.parameters())
        for _ in range(3):
            loss = model(torch.ones(8, 64)).square().mean()
            loss.backward()
            optimizer.step()
        return loss.item()

    for _ in range(3):
        first, second = launch.run(train)
        assert first == second


def test_a_rank_that_needs_longer_than_the_others_is_waited_for() -> None:
    def uneven() -> int:
        from course_lib.launch import group

        group._PEERS_S = 0.2  # rank 0 stays that long for its peer
        rank = launch.init().rank
        time.sleep(0.8 * rank)
        return rank

    assert launch.run(uneven) == [0, 1]


def test_ten_launches_at_once() -> None:
    def double(number: int) -> float:
        import torch
        import torch.distributed as dist

        total = torch.tensor(float(number))
        dist.all_reduce(total)
        return total.item()

    results: dict[int, list[float]] = {}

    def one(number: int) -> None:
        results[number] = launch.run(double, number)

    threads = [threading.Thread(target=one, args=(number,)) for number in range(10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == {number: [2.0 * number] * 2 for number in range(10)}
