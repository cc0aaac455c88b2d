"""Each kind of thing that a grid of cells draws: where it stands, and how it looks."""

from checks import draw

from course_lib.figures.engines.cells import Cell, cells, matrix
from course_lib.figures.paper import style
from course_lib.figures.paper.drawing import Drawing, Shapes


def shapes(drawing: Drawing, kind: str, colour: str) -> list[Shapes]:
    every = [mark for mark in drawing.marks if isinstance(mark, Shapes)]
    return [one for one in every if one.kind == kind and colour in (one.fill, one.edge)]


def test_a_filled_slot_has_the_colour_of_its_word_and_a_share_of_the_cell() -> None:
    drawing = cells({"rank 0": {"a": Cell("", {1: "weights"}, 4)}})
    (filled,) = shapes(drawing, "box", style.WEIGHTS)
    ((outline,),) = [one.places for one in shapes(drawing, "box", style.WHITE)]
    ((x, y, wide, high),) = filled.places
    assert (round(x - outline[0], 3), y, round(wide, 3), high) == (
        round(outline[2] / 4, 3), outline[1], round(outline[2] / 4, 3), outline[3],
    )  # fmt: skip
    assert drawing.sentence == "rank 0: a 1 of 4 parts of weights."


def test_neighbours_of_one_word_are_one_piece_unless_lined() -> None:
    grid = {"rank 0": {"a": Cell("", {0: "weights", 1: "weights"}, 2)}}
    counts = [
        sum(len(one.places) for one in shapes(cells(grid, lined=lined), "box", style.WEIGHTS))
        for lined in (False, True)
    ]
    assert counts == [1, 2]


def test_a_sum_has_a_stripe_for_each_summand_at_the_foot_of_its_slot() -> None:
    drawing = cells({"all": {"sum": Cell("", {0: ("weights", "gradients")}, texts={0: "3"})}})
    (first,) = shapes(drawing, "box", style.WEIGHTS)[0].places
    (second,) = shapes(drawing, "box", style.GRADIENTS)[0].places
    assert first[1] == second[1] and first[0] + first[2] == second[0]


def test_a_missing_part_is_dashed_and_empty() -> None:
    (missing,) = [
        one
        for one in shapes(cells({"a": {"b": Cell("", {0: "missing"})}}), "box", style.WHITE)
        if one.dashed
    ]
    assert len(missing.places) == 1


def test_frames_and_dots_stand_on_their_cells() -> None:
    drawing = cells({"a": {"b": Cell("", {}, 2, frame="messages", dots=(1,))}})
    (frame,) = shapes(drawing, "line", style.MESSAGES)
    (dot,) = shapes(drawing, "box", style.UPDATE)
    xs = [x for x, _ in frame.places[0]]
    assert min(xs) < dot.places[0][0] < max(xs) and frame.width == 2.5


def test_arrows_are_green_and_those_of_before_grey() -> None:
    grid = {"a": {"x": Cell("1"), "y": Cell("2")}}
    way = ((("a", "x"), ("a", "y")),)
    assert shapes(cells(grid, arrows=way), "line", style.MESSAGES)
    assert not shapes(cells(grid, past=way), "line", style.MESSAGES)
    assert "a goes from x to y" in cells(grid, arrows=way).sentence


def test_a_matrix_shows_the_numbers_that_are_held() -> None:
    one = draw(cells({"rank 0": {"A": matrix([[1, -2], [3, 4]], "weights", (1, 3))}}, square=24))
    assert [text for text, _ in one.extents if text not in ("rank 0", "A")] == ["−2", "4"]


def test_a_group_of_columns_and_the_second_line_of_a_name_are_told_once() -> None:
    grid = {"stage 1\n2 GPUs": {f"node 0\nGPU {gpu}": Cell("x") for gpu in range(2)}}
    words = {label.text: label for label in draw(cells(grid)).labels}
    assert {"node 0", "GPU 0", "GPU 1", "stage 1", "2 GPUs"} <= set(words)
    assert words["2 GPUs"].colour == style.GREY and words["node 0"].bold


def test_a_wide_cell_lies_over_all_its_columns() -> None:
    wide = {"x": Cell("", {0: "messages"}, wide=2)}
    drawing = cells({"a": {"x": Cell("1"), "y": Cell("2")}, "b": wide})
    (left, *_), (right, _, width, _) = shapes(drawing, "box", style.WHITE)[0].places
    (bar,) = shapes(drawing, "box", style.MESSAGES)[0].places
    assert (bar[0], round(bar[2], 3)) == (left, round(right + width - left, 3))
