"""Bytes behind tensors: each storage once, whatever looks at it and whether it has an address."""

import torch

from course_lib.measure.peak import tensor_bytes


def test_a_storage_counts_once():
    tensor = torch.zeros(10)
    assert tensor_bytes([tensor, tensor.view(2, 5), tensor[3:], tensor.detach()]) == 40
    assert tensor_bytes([tensor, tensor.clone()]) == 80


def test_what_is_freed_has_no_bytes():
    tensor = torch.zeros(10)
    tensor.untyped_storage().resize_(0)
    assert tensor_bytes([tensor, torch.zeros(3)]) == 12


def test_tensors_without_memory_count_as_if_they_had_it():
    meta = [torch.zeros(10, device="meta") for _ in range(2)]
    assert tensor_bytes(meta) == 80  # though both have address 0
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        fake = torch.zeros(10)
        assert tensor_bytes([fake, fake[3:], torch.zeros(5)]) == 60
