"""From key press to new pixels: every panel and stepper beside plain `interact`, in one JupyterLab.

    python benchmarks/panel_latency.py [NAME ...] [--presses 60]

A time runs from the key event's own time stamp until the second animation frame after the figure
changed, so it includes the round trip to the kernel and the painting of the frame. All sliders of
a panel are swept up and down; the slowest slider is named.
"""

import argparse
import random
import statistics
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from playwright.sync_api import Locator, Page

sys.path.append(str(Path(__file__).parents[1] / "tests"))
sys.path.append(str(Path(__file__).parents[1] / "tests" / "browser"))
import real_lab as lab
from all_rooms import panels, steppers

_INTERACT = """\
%matplotlib inline
import matplotlib.pyplot as plt
from ipywidgets import IntSlider, interact
@interact(batch=IntSlider(4, 1, 64))
def draw(batch):
    plt.figure(figsize=(7, 3))
    plt.barh(range(7), [batch * share for share in range(1, 8)])
    plt.xlabel('GB')
    plt.title(f'batch {batch}')
    plt.show()"""
_CASES = {name: f"panels.{name}()" for name in vars(panels)}
_CASES |= {f"steppers.{name}": f"steppers.{name}()" for name in vars(steppers)}
_CASES["interact"] = _INTERACT
_SLIDERS = "input[type=range], .noUi-handle"

# Counts a press as answered when what stands below the controls has changed.
_PROBE = """root => {
    const seen = () => root.querySelector('.course-stage, .widget-output');
    const probe = window.probe = {times: [], heights: []};
    const twoFrames = () => new Promise(done =>
        requestAnimationFrame(() => requestAnimationFrame(done)));
    let pressed = null;
    document.addEventListener('keydown', event => { pressed = event.timeStamp; }, true);
    window.addEventListener('keydown', event => { pressed = event.timeStamp; }, true);
    new MutationObserver(async () => {
        if (pressed === null || !seen().querySelector('svg, img')) return;
        const start = pressed;
        pressed = null;
        await twoFrames();
        probe.times.push(performance.now() - start);
        const height = Math.round(root.getBoundingClientRect().height);
        if (!probe.heights.includes(height)) probe.heights.push(height);
    }).observe(seen(), {childList: true, subtree: true});
}"""
_VALUE = "slider => slider.value ?? slider.getAttribute('aria-valuenow')"


@dataclass(frozen=True)
class Latency:
    """Times of all answered presses, by slider, and the heights that the panel had."""

    times_ms: dict[str, list[float]]
    heights_px: list[int]

    @property
    def median_ms(self) -> float:
        return statistics.median(self._all())

    @property
    def p95_ms(self) -> float:
        return statistics.quantiles(self._all(), n=20)[-1]

    @property
    def slowest(self) -> str:
        return max(self.times_ms, key=lambda name: statistics.median(self.times_ms[name]))

    def _all(self) -> list[float]:
        return [time for times in self.times_ms.values() for time in times]


def measure(page: Page, root: Locator, presses: int) -> Latency:
    """Sweep each slider, each press after the answer to the one before."""
    root.evaluate(_PROBE)
    sliders = root.locator(_SLIDERS).all()
    each = max(6, presses // max(len(sliders), 1))
    times = {}
    for number, slider in enumerate(sliders):
        start = len(page.evaluate("probe.times"))
        for key in _keys(each):
            _press(page, slider, key)
        found = page.evaluate("probe.times")[start:]
        if found:
            times[slider.evaluate("s => s.labels?.[0]?.textContent") or str(number)] = found
    return Latency(times, page.evaluate("probe.heights"))


def _keys(presses: int) -> Iterator[str]:
    """Up and down again in one sweep: few values are asked for twice."""
    yield from ["ArrowRight"] * (presses // 2) + ["ArrowLeft"] * (presses - presses // 2)


def _press(page: Page, slider: Locator, key: str) -> None:
    pauses = random.Random(slider.evaluate(_VALUE))  # frames must not fall into step with presses
    slider.focus()
    before, count = slider.evaluate(_VALUE), len(page.evaluate("probe.times"))
    page.keyboard.press(key)
    if slider.evaluate(_VALUE) != before:
        try:  # some moves change nothing that is drawn
            page.wait_for_function("count => probe.times.length > count", arg=count, timeout=1500)
        except Exception:
            return
    page.wait_for_timeout(pauses.uniform(30, 80))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", help="panels and steppers; all of them without")
    parser.add_argument("--presses", type=int, default=48)
    options = parser.parse_args()
    cases = {name: _CASES[name] for name in options.names or _CASES}
    with tempfile.TemporaryDirectory() as home:
        results = _measure_all(Path(home), cases | {"interact": _INTERACT}, options.presses)
    _print(results)


def _measure_all(home: Path, cases: dict[str, str], presses: int) -> dict[str, Latency]:
    root = home / "root"
    root.mkdir()
    results = {}
    with lab.chromium() as browser, lab.running_lab(root, home) as running:
        for name, code in cases.items():
            (root / f"{name}.ipynb").write_text(lab.notebook(code))
            page = running.new_page(browser)
            running.open(page, f"{name}.ipynb")
            lab.run_all(page)
            shown = page.locator(".course-panel, .widget-interact").first
            shown.locator(_SLIDERS).first.wait_for()
            results[name] = measure(page, shown, presses)
            page.close()
    return results


def _print(results: dict[str, Latency]) -> None:
    base = results["interact"].median_ms
    print(f"{'panel':<28}{'presses':>8}{'p50 ms':>8}{'p95 ms':>8}{'of interact':>13}   slowest")
    for name, found in results.items():
        presses = sum(map(len, found.times_ms.values()))
        print(
            f"{name:<28}{presses:>8}{found.median_ms:>8.0f}{found.p95_ms:>8.0f}"
            f"{found.median_ms / base:>12.0%}   {found.slowest}, heights {found.heights_px} px"
        )


if __name__ == "__main__":
    main()
