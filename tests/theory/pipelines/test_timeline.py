"""What a timeline says of itself: drawings that can be checked by hand, and its text."""

from probes import Probe, by_name

from course_lib.theory.pipelines.simulation import timeline


def test_dualpipe_of_the_authors_figure():
    """8 stages and 20 micro-batches, as drawn in the DualPipe README: bubble 6, 9 in flight.

    Its middle stages run their first forward and backward apart; each stage overlaps
    2 (10 - 8 + depth + 1) pairs, and one for each stage further outside.
    """
    line = timeline("dualpipe", 8, 20)
    pairs = [sum(task.kind == "F&B" for task in tasks) for tasks in line.by_stage]
    assert pairs == [9, 10, 11, 11, 11, 11, 10, 9]
    assert line.bubble_time == 6
    assert [line.in_flight(stage) for stage in range(8)] == [9] * 8


def test_weights_follow_their_inputs():
    for name in ("zb1p", "dualpipe"):
        for tasks in timeline(name, 4, 8).by_stage:
            inputs = {
                (task.micro_batch, task.chunk): task.end for task in tasks if task.kind == "I"
            }
            weights = [task for task in tasks if task.kind == "W"]
            assert len(weights) == len(inputs) > 0
            assert all(task.start >= inputs[task.micro_batch, task.chunk] for task in weights)


def test_two_stages_by_hand():
    line = timeline("1f1b", 2, 2)
    spans = [[(t.kind, t.micro_batch, t.start, t.end) for t in tasks] for tasks in line.by_stage]
    assert spans == [
        [("F", 0, 0, 1), ("F", 1, 1, 2), ("B", 0, 4, 6), ("B", 1, 7, 9)],
        [("F", 0, 1, 2), ("B", 0, 2, 4), ("F", 1, 4, 5), ("B", 1, 5, 7)],
    ]


def test_explain_has_the_totals():
    text = timeline("1f1b", 4, 8).explain()
    assert "4 stages, 8 micro-batches" in text
    assert "makespan 33 = busy 24 + bubble 9" in text
    assert "37.50%" in text
    assert text.count("in flight") == 4


def test_a_repeated_batch_is_flushed_each_time():
    batch = timeline("1f1b", 2, 2)
    tasks = batch.repeated(3)
    assert tasks[: len(batch.tasks)] == batch.tasks
    assert len(tasks) == 3 * len(batch.tasks)
    last = tasks[-len(batch.tasks) :]
    assert min(task.start for task in last) == 2 * batch.makespan
    assert {task.micro_batch for task in last} == {4, 5}
    passes = [(task.stage, task.kind, task.micro_batch) for task in tasks]
    assert len(set(passes)) == len(passes)


def test_both_halves_of_an_overlapped_pass_move_on():
    batch = timeline("dualpipe", 4, 8)
    later = batch.repeated(2)[len(batch.tasks) :]
    for before, after in zip(batch.tasks, later, strict=True):
        assert after.micro_batch == before.micro_batch + 8
        if before.backward:
            assert after.backward.micro_batch == before.backward.micro_batch + 8


PROBES = by_name(
    Probe(timeline("1f1b", 4, 8).in_flight, {"stage": 0}, {"stage": 1}),
    Probe(timeline("1f1b", 4, 8).repeated, {"turns": 1}, {"turns": 2}),
)
RECORDS = {
    "Task": list(timeline("dualpipe", 4, 8).tasks),
    "Timeline": [timeline("dualpipe", 4, 8), timeline("1f1b", 2, 4)],
}
