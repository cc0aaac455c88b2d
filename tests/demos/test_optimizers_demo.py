"""The optimizers in fewer bytes, beside AdamW in fp32; the learner's own where they are built."""

import pytest
from together import runs

from course_lib import demos, launch, mine

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


KEPT = """from pathlib import Path
from course_lib.scratch.{home} import {name} as Course

class {name}(Course):
    def step(self):
        Path({trace!r}).touch()
        {before}
        super().step()
"""


def _keep(name, home, trace, before="pass"):
    path = mine.file_of(mine.BY_NAME[name])
    path.parent.mkdir(exist_ok=True)
    path.write_text(KEPT.format(home=home, name=name, trace=str(trace), before=before))


def test_the_learners_own_run(tmp_path, monkeypatch):
    monkeypatch.setenv("COURSE_HOME", str(tmp_path))
    parts = [("MasterAdamW", "master_copy"), ("AdamW8bit", "eight_bit")]
    for name, home in parts:
        _keep(name, home, tmp_path / name)
    course = demos.run("optimizers", ranks=1, stream=False, **SMALL)
    assert "your" not in course.report()
    assert not any((tmp_path / name).exists() for name, _ in parts)
    ours = demos.run("optimizers", ranks=1, stream=False, parts="mine", **SMALL)
    assert all((tmp_path / name).exists() for name, _ in parts)
    assert "bf16, master copy, by your MasterAdamW" in ours.report()
    assert "8-bit, by your AdamW8bit" in ours.report()
    _keep("AdamW8bit", "eight_bit", tmp_path / "again", before="self.lr *= 2")
    with pytest.raises(launch.RankFailed, match="by your AdamW8bit: the way of the weights"):
        demos.run("optimizers", ranks=1, stream=False, parts="mine", **SMALL)
