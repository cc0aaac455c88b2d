"""The picture on README's first screen is the ring stepper of chapter 6, frame by frame.

`APPROVE=1 pytest tests/panels/test_moving_picture.py` draws it anew.
"""

import os
import re
from pathlib import Path
from xml.etree import ElementTree

from course_lib.chapters.ch06_collectives.steppers import ring
from course_lib.figures.paper import style
from course_lib.figures.paper.drawing import WIDTH_PT
from course_lib.panels.stepper import Stepper

PICTURE = Path(__file__).parents[2] / "course_lib" / "chapters" / "pictures" / "ring.svg"
FRAME_S, CAPTION_PT = 2, 22


def moving(stepper: Stepper, label: str) -> str:
    """An SVG that shows each step for some seconds; the last one where motion is not wanted."""
    frames = []
    for step in range(stepper.count):
        stepper.step.value = step
        frame = re.sub(r' (role|aria-label)="[^"]*"', "", stepper._sheet.to_svg(themed=False))
        frame = re.sub(r"\bd\d+-h", f"s{step}-h", frame)  # ids of hatches
        caption = stepper._view.caption
        frames.append(
            f'<g class="step" style="animation-delay:{FRAME_S * step}s">'
            f'<text x="{style.PADDING_PT}" y="16" font-size="13">{caption}</text>'
            f'<svg y="{CAPTION_PT}pt">{frame}</svg></g>'
        )
    padded = WIDTH_PT + 2 * style.PADDING_PT
    high = stepper._sheet.height_pt + 2 * style.PADDING_PT + CAPTION_PT
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" role="img" aria-label="{label}" '
        f'width="{padded:g}pt" height="{high:g}pt">'
        f"<style>.step{{opacity:0;animation:{FRAME_S * len(frames)}s step-end infinite show}}"
        f"@keyframes show{{0%{{opacity:1}}{100 / len(frames):.4f}%{{opacity:0}}}}"
        "@media (prefers-reduced-motion){.step{animation:none}.step:last-child{opacity:1}}</style>"
        f'<rect width="100%" height="100%" fill="{style.WHITE}"/>'
        f'<g font-family="Verdana, sans-serif" fill="{style.INK}">{"".join(frames)}</g></svg>\n'
    )


def test_the_picture_of_readme_is_the_ring_stepper():
    drawn = moving(ring(4), "A ring all-reduce on four ranks, step by step")
    ElementTree.fromstring(drawn)
    if os.environ.get("APPROVE"):
        PICTURE.write_text(drawn, encoding="utf-8")
    assert PICTURE.read_text(encoding="utf-8") == drawn, f"draw {PICTURE.name} anew: APPROVE=1"
