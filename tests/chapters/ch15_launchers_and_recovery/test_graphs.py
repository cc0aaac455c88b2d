"""Graphs of torch.compile by the rule, and counted."""

import torch
from every import every

from course_lib.chapters.ch15_launchers_and_recovery.graphs import graphs_made


def _epoch(samples, size):
    return [size] * (samples // size) + [samples % size] * (samples % size > 0)


@every(
    ("sizes", "graphs"),
    [
        ([], 0),
        ([8, 8], 1),
        ([8, 8, 6, 5, 8], 2),
        ([8, 1, 8], 2),
        ([8, 1, 6, 5, 1, 2, 32], 3),
        ([1, 8, 6], 2),
        ([1, 1], 1),
        (_epoch(100, 8) * 2, 2),
        (_epoch(97, 8) * 2, 2),
        (_epoch(100, 8) + _epoch(100, 32), 2),
    ],
)
def test_the_rule_counts_what_torch_makes(sizes, graphs):
    counted = []

    def backend(graph, _):
        counted.append(graph)
        return graph.forward

    torch._dynamo.reset()
    compiled = torch.compile(torch.nn.Linear(4, 4), backend=backend)
    for size in sizes:
        compiled(torch.ones(size, 4))
    torch._dynamo.reset()
    assert graphs_made(sizes) == len(counted) == graphs
