"""Steps and samples against torch's own sampler and loader."""

from hypothesis import given
from hypothesis import strategies as st
from test_batching import COUNTS, SMALL
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

from course_lib.theory.step.batching import Batching, rank_samples


@given(samples=COUNTS, micro_batch=SMALL, dp=SMALL, drop_last=st.booleans())
def test_steps_equal_those_of_torch(samples, micro_batch, dp, drop_last):
    if drop_last and samples < micro_batch * dp:
        return
    sampler = DistributedSampler(range(samples), dp, rank=0, drop_last=drop_last)
    loader = DataLoader(range(samples), micro_batch, sampler=sampler, drop_last=drop_last)
    ours = Batching(samples, micro_batch, gpus_per_node=dp, drop_last=drop_last).epoch()
    assert ours.micro_steps == len(loader)


@given(samples=COUNTS, dp=SMALL, drop_last=st.booleans())
def test_rank_samples_equal_those_of_torch(samples, dp, drop_last):
    for rank in range(dp):
        sampler = DistributedSampler(range(samples), dp, rank, shuffle=False, drop_last=drop_last)
        assert rank_samples(samples, dp, rank, drop_last) == list(sampler)
