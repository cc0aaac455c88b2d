"""The course's AdamW8bit beside bitsandbytes': from one start, on the same batches."""

import re

import pytest
import torch

from course_lib import launch, recorded
from course_lib.demos.shared.training import Training, mean_loss
from course_lib.measure.gradients import relative_difference
from course_lib.scratch.precision import AdamW8bit, dynamic_levels

RUN = Training(steps=30, learning_rate=3e-4)  # chapter 3's run of the demo `optimizers`


def _way(make):
    """How far all weights went in RUN, and the last loss."""
    model = RUN.build()
    start = torch.cat([p.detach().flatten() for p in model.parameters()])
    optimizer = make(model.parameters(), lr=RUN.learning_rate)
    for batch in RUN.batches():
        model.zero_grad()
        loss = mean_loss(model, batch)
        loss.backward()
        optimizer.step()
    end = torch.cat([p.detach().flatten() for p in model.parameters()])
    return end - start, float(loss.detach())


def _trained():
    """The ways and last losses of all three: fp32, bitsandbytes', the course's."""
    import bitsandbytes

    return [_way(one) for one in (torch.optim.AdamW, bitsandbytes.optim.AdamW8bit, AdamW8bit)]


@pytest.mark.engine("bitsandbytes")
def test_the_courses_optimizer_goes_the_way_of_bitsandbytes():
    (fp32, loss), (theirs, their_loss), (ours, our_loss) = launch.run(
        _trained, ranks=1, stream=False
    )[0]
    assert [their_loss, our_loss] == pytest.approx([loss, loss], rel=1e-3)
    off = [relative_difference(*pair) for pair in ((theirs, fp32), (ours, fp32), (ours, theirs))]
    assert max(off) < 0.05 and off[2] < 0.03
    said = re.findall(r"([\d.]+) %", recorded("bitsandbytes"))
    assert [float(percent) / 100 for percent in said] == pytest.approx(off, abs=0.003)


@pytest.mark.engine("bitsandbytes")
def test_the_levels_are_those_of_bitsandbytes():
    """All but one: its map of the variance has a 0, which the course leaves out on purpose."""
    from bitsandbytes.functional import create_dynamic_map

    for signed in (True, False):
        theirs = create_dynamic_map(signed)
        theirs = theirs if signed else theirs[theirs != 0]
        torch.testing.assert_close(dynamic_levels(signed), theirs)
