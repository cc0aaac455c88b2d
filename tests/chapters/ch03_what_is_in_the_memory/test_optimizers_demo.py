"""The optimizers in fewer bytes, beside AdamW in fp32; the learner's own where they are built."""

import pytest
from together import runs

SMALL = {"model": "2x16x2", "steps": 12, "batch": 4, "sequence": 8}


def test_bytes_are_as_predicted_and_only_what_should_fail_does():
    rates = {rate: {"learning_rate": rate} for rate in (3e-4, 3e-3)}
    for ranks in (1, 2):
        for rate, result in runs("optimizers", rates, ranks, **SMALL).items():
            found = {version.name: version for version in result.versions}
            assert all(v.state_bytes == v.predicted_bytes for v in result.versions)
            each = [v.state_bytes / v.parameters for v in result.versions]
            assert each == pytest.approx([16, 8, 16, 10, 10], rel=0.01)
            assert found["fp32"].gap == 0
            assert found["8-bit"].gap < 0.1 < 1 < found["8-bit, linear maps"].gap
            if rate == 3e-4:  # small updates, which bf16 loses
                assert found["bf16, master copy"].gap < found["bf16, no master copy"].gap / 2
