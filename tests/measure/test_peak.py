"""Bytes behind tensors: each storage once, whatever looks at it and whether it has an address."""

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from course_lib.measure.peak import MemoryLog, log_memory, tensor_bytes
from course_lib.scratch.gpt import GPT


def test_a_storage_counts_once():
    tensor = torch.zeros(10)
    assert tensor_bytes([tensor, tensor.view(2, 5), tensor[3:], tensor.detach()]) == 40
    assert tensor_bytes([tensor, tensor.clone()]) == 80


def test_tensors_without_memory_count_as_if_they_had_it():
    meta = [torch.zeros(10, device="meta") for _ in range(2)]
    assert tensor_bytes(meta) == 80  # though both have address 0
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        fake = torch.zeros(10)
        assert tensor_bytes([fake, fake[3:], torch.zeros(5)]) == 60


TORCH = tuple(int(part) for part in torch.__version__.split(".")[:2])


def test_births_and_deaths_in_order():
    with log_memory() as log:
        a = torch.empty(100)  # 400 bytes
        b = a * 2
        del a
        c = torch.tensor([1.0, 2.0])
        del b
        del c
    assert log.changes == [400, 400, -400, 8, -400, -8]
    assert log.timeline == [0, 400, 800, 400, 408, 8, 0]
    assert (log.peak_bytes, log.allocations) == (800, 3)


def test_views_allocate_nothing_and_keep_their_storage_alive():
    with log_memory() as log:
        a = torch.zeros(4, 5)
        b = a.view(20)[3:].unsqueeze(0)
        b.add_(1)
        a.t().mul_(2)
        del a
        assert log.changes == [80]
        del b
    assert log.changes == [80, -80]


def test_a_storage_resized_to_nothing_and_back_dies_and_is_born():
    weight = torch.empty(50)
    weight.untyped_storage().resize_(0)  # as FSDP leaves a layer behind
    with log_memory() as log:
        a = torch.empty(100)
        a.untyped_storage().resize_(0)
        a.untyped_storage().resize_(400)
        del a
        assert log.allocations == 2
        weight.untyped_storage().resize_(200)
        weight.untyped_storage().resize_(0)
    assert log.changes == [400, -400, 400, -400, 200, -200]


def test_tensors_from_before_count_only_when_named():
    layer, x = nn.Linear(10, 10), torch.randn(1, 10)
    with log_memory() as unnamed:
        layer(x)
    assert unnamed.baseline_bytes == 0
    assert unnamed.changes == [40, -40]
    with log_memory(before=layer.parameters()) as named:
        del layer
    assert named.baseline_bytes == 440
    assert sum(named.changes) == -440
    assert named.peak_bytes == 440


def test_since_a_mark():
    log = MemoryLog(10, [5, -5, 7])
    later = log.since(2)
    assert (later.baseline_bytes, later.timeline, later.allocations) == (10, [10, 17], 1)


def test_the_resize_of_storages_is_put_back_after_an_error():
    before = torch.UntypedStorage.resize_
    with pytest.raises(KeyError), log_memory():
        raise KeyError
    assert torch.UntypedStorage.resize_ is before


@pytest.mark.torch_internals
@pytest.mark.skipif(TORCH < (2, 13), reason="written for torch 2.13's MemTracker")
def test_torch_s_own_tracker_sees_the_same_peak():
    from torch.distributed._tools.mem_tracker import MemTracker

    model = GPT(2, 32, 4, vocab=64, context=16)
    tokens = torch.randint(0, 64, (2, 16))

    def step():
        cross_entropy(model(tokens).flatten(0, 1), tokens.flatten()).backward()

    with log_memory(before=[*model.parameters(), tokens]) as ours:
        step()
    model.zero_grad()
    theirs = MemTracker()
    theirs.track_external(model, tokens)
    with theirs:
        step()
    peak = sum(sizes["Total"] for sizes in theirs.get_tracker_snapshot("peak").values())
    assert ours.peak_bytes == peak
