"""Figures: what they say, that they fit their sheet, and that they can share a page."""

import math
import re
import xml.etree.ElementTree as ElementTree
from collections import Counter

import checks
import pytest
from approved import expect_approved
from checks import Drawn
from listed import FIGURES, SMALL, SPLIT, TITLE

from course_lib import figures, outline
from course_lib.chapters.ch01_steps_and_batches.figures import same_samples, samples_by_rank
from course_lib.chapters.ch03_what_is_in_the_memory.figures import consumers
from course_lib.chapters.ch04_activations.figures import activation_terms as activation_terms_figure
from course_lib.figures.paper import style
from course_lib.theory.inputs.job import Job
from course_lib.theory.inputs.layout import Layout
from course_lib.theory.inputs.models import MODELS
from course_lib.theory.memory.activations import activation_terms
from course_lib.theory.network.mesh import place


def test_svg_is_labelled_and_well_formed(drawn: dict[str, Drawn]) -> None:
    for name, one in drawn.items():
        root = ElementTree.fromstring(one.svg)
        assert root.get("role") == "img", name
        assert root.get("aria-label") == one.picture.sentence, name
        assert re.search(r"\d", one.picture.sentence), name
        assert "<style" not in one.svg, f"{name}: it would restyle the whole page"
        assert len(one.svg) < (24_000 if name == "dualpipe" else 20_000), name


@pytest.mark.parametrize("name", FIGURES)
def test_it_looks_as_it_was_approved(name: str, drawn: dict[str, Drawn]) -> None:
    expect_approved(f"figure {name}", drawn[name].svg)


def test_svg_refers_to_its_own_ids(drawn: dict[str, Drawn]) -> None:
    for name, one in drawn.items():
        pictures = (one.svg, one.picture.to_svg())
        ids = [set(re.findall(r'id="([^"]+)"', text)) for text in pictures]
        for text, own in zip(pictures, ids, strict=True):
            used = set(re.findall(r'(?:url\(#|href="#)([^")]+)', text))
            assert used <= own, name
        assert not ids[0] & ids[1], name


def test_nothing_is_wrong_in_the_picture(drawn: dict[str, Drawn]) -> None:
    assert {name: found for name, one in drawn.items() if (found := checks.faults(one))} == {}
    for name, one in drawn.items():
        assert one.labels, name


def test_the_page_s_colours_are_those_of_the_theme(drawn: dict[str, Drawn]) -> None:
    """Plain ink, greys and white stand only where the variables are set."""
    for name, one in drawn.items():
        opening, _, rest = one.svg.partition(">")
        assert "--i:var(--jp-content-font-color1,#222222)" in opening, name
        assert "height:auto" in opening and "max-width:100%" in opening, name
        assert not re.search("#(222222|767676|ededed|ffffff|a84f09)", rest, re.IGNORECASE), name
        assert "var(--" in rest, name


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


def test_groups_of_ranks_have_the_colours_of_their_axes(drawn: dict[str, Drawn]) -> None:
    one = drawn["rank groups"]
    named = {
        text.split()[0]: checks.beside(one, box)
        for text, box in one.extents
        if "group of rank" in text
    }
    assert named == {axis: [style.AXES[axis]] for axis in ("tp", "dp")}


def test_roles_are_told_apart(drawn: dict[str, Drawn]) -> None:
    """All fills are of one palette that colour-blind readers can tell apart."""
    palette = {style.BLUE, style.SKY, style.GREEN, style.YELLOW, style.ORANGE, style.VERMILION}
    palette |= {style.PINK, style.INK, style.GREY, style.PALE, style.WHITE}
    doubled = style.MESSAGES, style.FORWARD, style.BACKWARD, style.WEIGHT_GRADIENT
    palette |= {style.lighter(one) for one in doubled}
    for name, one in drawn.items():
        assert {fill for fill, _ in one.boxes} <= palette, name


def test_the_numbers_on_a_roofline_stand_at_their_dots(drawn: dict[str, Drawn]) -> None:
    for name in ("roofline", "roofline, in the middle", "roofline, far right"):
        one = drawn[name]
        boxes = [each.extent for each in one.outlines if each.shapes.kind == "dot"]
        dots = [((box.x0 + box.x1) / 2, (box.y0 + box.y1) / 2) for box in boxes]
        numbers = {
            label.text: (box.x0 + box.x1) / 2
            for label, (_, box) in zip(one.labels, one.extents, strict=True)
            if label.size == 9 and label.text in {"1", "2", "3", "4"}
        }
        assert len(dots) == len(numbers) == 4, name
        across = [numbers[str(row + 1)] for row in range(4)]
        assert sorted(range(4), key=lambda row: (dots[row], row)) == sorted(
            range(4), key=across.__getitem__
        ), f"{name}: numbers are in another order than their dots"
        for (x, y), number in zip(dots, across, strict=True):
            beside = sum(abs(x - a) + abs(y - b) < 40 for a, b in dots)  # itself included
            assert abs(number - x) < 8 + 15 * beside, name
        assert max(y for _, y in dots) < one.page.y1 - 50, f"{name}: a dot on the frame"


def test_notebook_gets_svg_for_the_page_svg_alone_and_words(drawn: dict[str, Drawn]) -> None:
    for name, one in drawn.items():
        data = one.picture._repr_mimebundle_()
        page, alone = data["text/html"], data["image/svg+xml"]
        assert page.startswith("<svg") and data["text/plain"] == one.picture.sentence, name
        assert ElementTree.fromstring(alone).tag == "{http://www.w3.org/2000/svg}svg", name
        assert "var(--" in page and "var(--" not in alone, name


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
    assert len(drawn) == 2
    assert all(text in one.picture.sentence for text in words[-8:])
    assert not checks.faults(one)


def test_a_logarithmic_axis_has_no_bars_and_is_labelled(drawn: dict[str, Drawn]) -> None:
    one = drawn["bars by tens"]
    squares = [box for fill, box in one.boxes if fill == style.MESSAGES]
    assert len(squares) == 2 and {round(box.width) for box in squares} == {9}
    texts = [text for text, _ in one.extents]
    assert texts[1:6] == ["10 B", "10 kB", "10 MB", "10 GB", "10 TB"]
    ticks = {text: (box.x0 + box.x1) / 2 for text, box in one.extents[1:6]}
    (large, small) = sorted(((box.x0 + box.x1) / 2 for box in squares), reverse=True)
    decade = (ticks["10 TB"] - ticks["10 B"]) / 12
    assert small - ticks["10 B"] == pytest.approx(decade * math.log10(5.2), abs=0.5)
    assert large - small == pytest.approx(decade * math.log10(4e11 / 52), abs=0.5)


def test_number_ranges_explain_both_colours(drawn: dict[str, Drawn]) -> None:
    one = drawn["number ranges, one"]
    words = {text: checks.beside(one, box) for text, box in one.extents}
    assert words["all digits"] == [style.BLUE]
    assert words["fewer digits (subnormal)"] == [style.YELLOW]
    assert one.labels[0].bold


SENTENCES = {
    "one rank": "One update: micro-batch 5 × accumulation 2 × dp 1 = global batch of 10 samples. "
    "One epoch of 1,000 samples: 200 micro-steps on each rank and 100 updates; "
    "no sample repeated or dropped.",
    "repeated": "1 sample repeated",
    "dropped": "43 samples dropped",
    "window": "with no_sync: 1 backward pass all-reduces (chosen)",
    "cost": "batch 64: 17× the steps",
    "memory": "does not fit in 22.35 GiB",
    "ladder": "One epoch has 13 updates one after another; one update has 2 micro-steps one after "
    "another; one micro-step has 8 micro-batches side by side; one micro-batch has 5 samples "
    "at once; one update rests on 80 samples",
    "heads, one": "64 query heads and 8 key-value heads on GPU 0",
    "samples": "rank 0 saw 4 samples, rank 1 saw 4 samples; 2 samples seen again",
    "map": "1 Steps and batches, after 0; 2 Gradient accumulation, after 1;",
    "cut unit": "3 of biases) and 1 of padding, cut into 4 parts of 4",
    "loss": "two ranks: loss 3 at update 1, 2 at update 3",
    "two": "predicted: 4 stages, 8 micro-batches, from 0 to 33 s. "
    "measured: 4 stages, 8 micro-batches, from 0 to 96 s.",
}


@pytest.mark.parametrize("name", SENTENCES)
def test_sentences(name: str, drawn: dict[str, Drawn]) -> None:
    assert SENTENCES[name] in drawn[name].picture.sentence


def test_same_order_is_pointed_out() -> None:
    assert FIGURES["samples"]().to_svg().count("the epoch before</text>") == 2
    other = samples_by_rank([[[0, 1]], [[1, 0]]])
    assert "the same order" not in other.to_svg()


def test_terms_of_experts_are_shown_where_there_are_experts() -> None:
    mixtral = Job(MODELS["mixtral-8x7b"], sequence=1024)
    drawn = activation_terms_figure(activation_terms(mixtral), 32, TITLE).sentence
    plain = FIGURES["activations"]().sentence
    for name in ("routed experts", "router"):
        assert name in drawn and name not in plain
    assert "latents" not in drawn and plain.count("not kept") == 2  # layer input, dropout masks


def test_samples_are_shared_as_the_mesh_stands() -> None:
    svg = same_samples({"split": SPLIT}).to_svg()
    layout = Layout(tp=8, dp=2, pp=4)
    first = [rank for rank in range(64) if place(layout, rank)["dp"] == 0]
    assert svg.count(">0</text>") - 1 == len(first) == 32  # 1 is a column's head


def test_capacity_and_total_share_one_scale() -> None:
    """A total equal to the capacity ends where the capacity's line stands."""
    full = consumers(SMALL, "GB", SMALL.total_bytes)
    rights = [each.extent.x1 for each in checks.draw(full).outlines]
    assert "it fits" in full.sentence
    assert rights[-1] == pytest.approx(rights[-2]), "the line is drawn last, after the total"
    assert max(rights) == pytest.approx(rights[-1])
