"""Figures: that each fits its sheet, can be read, shares a page, and looks as it was approved."""

import math
import re
import xml.etree.ElementTree as ElementTree
from collections import Counter

import checks
import pytest
from approved import expect_approved
from checks import Drawn
from listed import FIGURES, SMALL, SPLIT, TITLE, rooms

from course_lib import figures, outline
from course_lib.figures.paper import style
from course_lib.theory.inputs.job import Job
from course_lib.theory.inputs.layout import Layout
from course_lib.theory.inputs.models import MODELS
from course_lib.theory.memory.activations import activation_terms
from course_lib.theory.network.mesh import place

# One palette that colour-blind readers can tell apart, and lighter versions for later chunks.
PALETTE = {style.BLUE, style.SKY, style.GREEN, style.YELLOW, style.ORANGE, style.VERMILION}
PALETTE |= {style.PINK, style.INK, style.GREY, style.PALE, style.WHITE}
LIGHTER = style.MESSAGES, style.FORWARD, style.BACKWARD, style.WEIGHT_GRADIENT
PALETTE |= {style.lighter(one) for one in LIGHTER}


@pytest.mark.parametrize("name", FIGURES)
def test_a_figure_is_readable_and_looks_as_it_was_approved(
    name: str, drawn: dict[str, Drawn]
) -> None:
    one = drawn[name]
    assert one.labels and not checks.faults(one)
    assert re.search(r"\d", one.picture.sentence)
    assert {fill for fill, _ in one.boxes} <= PALETTE
    assert len(one.svg) < (24_000 if name == "dualpipe" else 20_000)
    expect_approved(f"figure {name}", one.svg)


@pytest.mark.parametrize("name", FIGURES)
def test_a_notebook_gets_svg_for_the_page_svg_alone_and_words(
    name: str, drawn: dict[str, Drawn]
) -> None:
    one = drawn[name]
    data = one.picture._repr_mimebundle_()
    page, alone = data["text/html"], data["image/svg+xml"]
    assert data["text/plain"] == one.picture.sentence
    for svg in (page, alone):
        root = ElementTree.fromstring(svg)
        assert root.tag == "{http://www.w3.org/2000/svg}svg" and root.get("role") == "img"
        assert root.get("aria-label") == one.picture.sentence
        assert "<style" not in svg, "it would restyle the whole page"
    # On a page plain ink, greys and white stand only where the theme's variables are set.
    opening, _, rest = page.partition(">")
    assert "--i:var(--jp-content-font-color1,#222222)" in opening
    assert "height:auto" in opening and "max-width:100%" in opening
    assert not re.search("#(222222|767676|ededed|ffffff|a84f09)", rest, re.IGNORECASE)
    assert "var(--" in rest and "var(--" not in alone
    # Two drawings on one page have no id in common, and each refers to its own.
    ids = [set(re.findall(r'id="([^"]+)"', svg)) for svg in (one.svg, page)]
    assert not ids[0] & ids[1]
    assert set(re.findall(r'(?:url\(#|href="#)([^")]+)', page)) <= ids[1]


def test_one_word_has_one_colour(drawn: dict[str, Drawn]) -> None:
    """In all figures of memory, the boxes beside a word are of the colour of that word."""
    colours = {
        "weights": style.WEIGHTS,
        "gradients": style.GRADIENTS,
        "optimizer": style.STATES,
        "intermediate results": style.ACTIVATIONS,
        "temporary buffers": style.TEMPORARY,
    }
    seen = Counter(
        (text, fill)
        for one in drawn.values()
        for text, box in one.extents
        if text in colours
        for fill in checks.beside(one, box)
    )
    assert {text: fill for text, fill in seen} == colours
    assert len(seen) == len(colours) and seen["weights", style.WEIGHTS] >= 5


@pytest.mark.parametrize("name", ["roofline", "roofline, in the middle", "roofline, far right"])
def test_the_numbers_on_a_roofline_stand_at_their_dots(name: str, drawn: dict[str, Drawn]) -> None:
    one = drawn[name]
    boxes = [each.extent for each in one.outlines if each.shapes.kind == "dot"]
    dots = [((box.x0 + box.x1) / 2, (box.y0 + box.y1) / 2) for box in boxes]
    numbers = {
        label.text: (box.x0 + box.x1) / 2
        for label, (_, box) in zip(one.labels, one.extents, strict=True)
        if label.size == 9 and label.text in {"1", "2", "3", "4"}
    }
    assert len(dots) == len(numbers) == 4
    across = [numbers[str(row + 1)] for row in range(4)]
    assert sorted(range(4), key=lambda row: (dots[row], row)) == sorted(
        range(4), key=across.__getitem__
    ), "numbers are in another order than their dots"
    for (x, y), number in zip(dots, across, strict=True):
        beside = sum(abs(x - a) + abs(y - b) < 40 for a, b in dots)  # itself included
        assert abs(number - x) < 8 + 15 * beside
    assert max(y for _, y in dots) < one.page.y1 - 50, "a dot on the frame"


def test_the_map_s_arrows_keep_clear_of_other_boxes(drawn: dict[str, Drawn]) -> None:
    one = drawn["map"]
    chapters = [box.padded(-2) for _, box in one.boxes if box.width > 50]
    lines = [each.corners for each in one.outlines if each.shapes.kind == "line"]
    arrows = [corners for corners in lines if len(corners) == 2]  # the others are heads
    assert len(chapters) == len(outline.CHAPTERS) and len(arrows) == len(outline.steps())
    for (x0, y0), (x1, y1) in arrows:
        way = [(x0 + (x1 - x0) * part / 100, y0 + (y1 - y0) * part / 100) for part in range(101)]
        assert not [box for box in chapters for x, y in way if box.contains(x, y)]


def test_curves_that_lie_on_one_another_say_how_far_apart_they_are() -> None:
    first = [3.0, 2.5, 2.0]
    apart = {"mine": [value + 2.4e-7 for value in first], "the same": first, "other": [3, 2.6, 2]}
    one = checks.draw(figures.loss({"DDP": first, **apart}))
    words = [label.text for label in one.labels]
    assert words[-8:] == [
        *("DDP", "loss 3 at update 1, 2 at update 3"),
        *("mine", "at most 2.4 · 10⁻⁷ away from DDP"),
        *("the same", "the same numbers as DDP"),
        *("other", "loss 3 at update 1, 2 at update 3"),
    ]
    drawn = [each for each in one.outlines if each.shapes.width >= 2 and len(each.corners) == 3]
    assert len(drawn) == 2 and not checks.faults(one)
    assert all(text in one.picture.sentence for text in words[-8:])


def test_a_logarithmic_axis_has_no_bars_and_is_labelled(drawn: dict[str, Drawn]) -> None:
    one = drawn["bars by tens"]
    squares = [box for fill, box in one.boxes if fill == style.MESSAGES]
    assert len(squares) == 2 and {round(box.width) for box in squares} == {9}
    ticks = {text: (box.x0 + box.x1) / 2 for text, box in one.extents[1:6]}
    assert [*ticks] == ["10 B", "10 kB", "10 MB", "10 GB", "10 TB"]
    (large, small) = sorted(((box.x0 + box.x1) / 2 for box in squares), reverse=True)
    decade = (ticks["10 TB"] - ticks["10 B"]) / 12
    assert small - ticks["10 B"] == pytest.approx(decade * math.log10(5.2), abs=0.5)
    assert large - small == pytest.approx(decade * math.log10(4e11 / 52), abs=0.5)


def test_only_a_same_order_is_pointed_out() -> None:
    other = rooms.samples_by_rank([[[0, 1]], [[1, 0]]])
    assert "the same order" not in other.to_svg()
    assert FIGURES["samples"]().to_svg().count("the epoch before</text>") == 2


def test_terms_of_experts_are_shown_where_there_are_experts() -> None:
    mixtral = Job(MODELS["mixtral-8x7b"], sequence=1024)
    drawn = rooms.activation_terms(activation_terms(mixtral), 32, TITLE).sentence
    assert "routed experts" in drawn and "router" in drawn and "latents" not in drawn


def test_samples_are_shared_as_the_mesh_stands() -> None:
    svg = rooms.same_samples({"split": SPLIT}).to_svg()
    layout = Layout(tp=8, dp=2, pp=4)
    first = [rank for rank in range(64) if place(layout, rank)["dp"] == 0]
    assert svg.count(">0</text>") - 1 == len(first) == 32  # 1 is a column's head


def test_the_last_ranks_of_a_cut_unit_are_filled_up_with_zeros() -> None:
    assert "2 of padding, cut into 5 parts of 1" in figures.cut_unit({"norm": 3}, 5).sentence


def test_capacity_and_total_share_one_scale() -> None:
    """A total equal to the capacity ends where the capacity's line stands."""
    full = rooms.consumers(SMALL, "GB", SMALL.total_bytes)
    rights = [each.extent.x1 for each in checks.draw(full).outlines]
    assert "it fits" in full.sentence
    assert rights[-1] == pytest.approx(rights[-2]), "the line is drawn last, after the total"
    assert max(rights) == pytest.approx(rights[-1])
