"""Right answers of chapters 7 to 9 in another form than the solution's; what a refusal names."""

import pytest

from course_lib.checking import Wrong
from course_lib.checking.exercises import find

_NO_ACCUMULATION = {
    "train_batch_size": 64,
    "train_micro_batch_size_per_gpu": 4,
    "gradient_clipping": 0.0,
    "zero_optimization": {"stage": 2},
}


@pytest.mark.parametrize(
    ("key", "answer"),
    [
        ("8.9", _NO_ACCUMULATION),  # DeepSpeed computes it
        ("8.9", _NO_ACCUMULATION | {"gradient_accumulation_steps": 4}),
        ("9.3", (3.188e9, 49.81e6, 398.49e6)),
    ],
)
def test_right_in_another_form(key, answer):
    find(key).check(answer)


def test_a_wrong_entry_is_named():
    kept = {"A": "DDP", "B": "ZeRO 1", "C": "ZeRO 2", "D": "DDP", "E": "ZeRO 3", "F": "ZeRO 1"}
    with pytest.raises(Wrong, match="for 'B' it gave 'ZeRO 1'") as refused:
        find("8.10").check([kept, 36e6])
    assert "DDP's all-reduce stays" in refused.value.because


def test_a_division_by_no_ranks_is_no_error_of_the_check():
    def flat_shard(shapes, ranks):
        numbers = sum(rows if not more else rows * more[0] for rows, *more in shapes)
        part = -(-numbers // ranks)
        return part, part * ranks - numbers

    with pytest.raises(Wrong, match=r"raised ZeroDivisionError: .*, expected ValueError"):
        find("9.2").check(flat_shard)
