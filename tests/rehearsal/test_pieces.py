"""The tensors of a rank: those of the model that is rehearsed, and as many as the theory counts."""

import pytest
import torch
from jobs import GPT, LLAMA, job

from course_lib.rehearsal.expected import Piece, pieces
from course_lib.rehearsal.program import Transformer
from course_lib.theory.memory.states import local_parameters


@pytest.mark.parametrize("shape", [GPT, LLAMA])
def test_they_are_those_of_the_model(shape):
    with torch.device("meta"):
        model = Transformer(shape)
    sizes = sorted(p.numel() for p in model.parameters())
    assert sorted(t.numbers for t in pieces(job(shape), 0) for _ in range(t.count)) == sizes
    assert sum(sizes) == shape.parameters().total


@pytest.mark.parametrize("shape", [GPT, LLAMA])
def test_those_of_the_first_tp_rank_are_the_theorys(shape):
    cut = job(shape, tp=4)
    local = local_parameters(shape, cut.layout)
    assert sum(t.count * t.numbers for t in pieces(cut, 0)) == local.dense
    ends = [t.numbers for t in pieces(cut, 0) if t.unit == "ends"]
    assert sum(ends) == local.ends_dense


def test_rows_are_cut_as_torch_cuts_them():
    for rows in range(1, 12):
        for shards in range(1, 6):
            piece = Piece("weight", rows, columns=3)
            parts = [len(part) for part in torch.arange(rows).chunk(shards)]
            parts += [0] * (shards - len(parts))
            assert [piece.own_rows(shard, shards) for shard in range(shards)] == parts
            assert piece.padding(shards) == 3 * (shards * parts[0] - rows)
