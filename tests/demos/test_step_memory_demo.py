"""Memory over a step on real ranks: category by category against the theory."""

import pytest

from course_lib import demos


@pytest.mark.parametrize("ranks", [2, 4])
def test_each_category_is_as_predicted(ranks):
    result = demos.run("step_memory", ranks=ranks, stream=False, model="4x64x4", batch=16)
    for name, found in result.measured.items():
        theory = result.predicted[name]
        # Theory counts a layer's whole gradients from the moment at which its backward begins.
        least = 0.9 if name in ("ZeRO 2", "FSDP") else 0.98
        assert least < found.peak_bytes / theory.peak_bytes < 1.02, name
        for kind in ("weights", "gradients", "optimizer", "intermediate results"):
            most = max(theory.sizes[kind])
            assert max(found.sizes[kind]) == pytest.approx(most, rel=0.02), (name, kind)
        assert max(found.sizes["left over"]) < 1000, name
    assert result.report().splitlines()[-1].startswith("FSDP     peak")
