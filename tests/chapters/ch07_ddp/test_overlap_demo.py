"""The overlap demo: only small buckets travel during backward, and the trace can be opened."""

import json

import pytest

from course_lib import demos, figures
from course_lib.chapters.ch07_ddp.demos import overlap
from course_lib.measure.times import timeline
from course_lib.theory.network.bucket_timeline import ddp_buckets

SMALL = {"model": "3x96x4", "steps": 3, "bucket_cap_mb": 0.25}


def test_only_small_buckets_start_early(tmp_path):
    path = tmp_path / "trace.json"
    result = demos.run("overlap", stream=False, trace=str(path), **SMALL)
    sizes = [
        p.nbytes for p in reversed(list(overlap.Options(**SMALL).training().build().parameters()))
    ]
    cap = round(0.25 * 2**20)
    many = len(ddp_buckets(sizes, cap, first_bytes=cap))
    assert [lanes.buckets for lanes in result.lanes] == [1, 1, many, many]
    assert many > 3
    for lanes in result.lanes:
        # How much overlaps is up to the machine. When sending begins is not: a single bucket waits
        # for the last gradient.
        early = lanes.communication[0].at < lanes.computation[-1].until
        assert early == (lanes.buckets > 1)
        assert lanes.buckets > 1 or lanes.overlapped_ms == 0
        assert lanes.title in result.report()
    written = timeline(json.loads(path.read_text()))
    assert written.communication_ms == pytest.approx(result.lanes[-1].communication_ms)
    sheet = figures.lanes({run.title: run.rows for run in result.lanes})
    assert f"{many} buckets: " in sheet.sentence
