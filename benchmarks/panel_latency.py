"""From key press to new pixels: every panel beside plain `interact`, in one JupyterLab.

    python benchmarks/panel_latency.py [--presses 60] [--screenshots FOLDER]

A time runs from the key event's own time stamp until the second animation frame after the figure
changed, so it includes the round trip to the kernel and the painting of the frame.
"""

import argparse
import random
import statistics
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import nbformat
from playwright.sync_api import Page

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "browser"))
import real_lab as lab

# Every notebook's last cell shows sliders; the number says which of them is moved.
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
_CASES = {
    "batches": ("panels.batches()", 1),
    "accumulation": ("panels.accumulation()", 0),
    "critical_batch": ("panels.critical_batch()", 0),
    "memory": ("panels.memory()", 0),
    "interact": (_INTERACT, 0),
}
_KEYS = ("ArrowRight",) * 3 + ("ArrowLeft",) * 3

# Counts a press as answered when the figure has changed, and with it the table where there is one.
_PROBE = """() => {
    const root = document.querySelector('.jp-CodeCell .jp-OutputArea .widget-vbox, ' +
                                        '.jp-CodeCell .jp-OutputArea .widget-interact');
    const figure = () => root.querySelector('svg[role=img], img');
    const probe = window.probe = {times: [], blank: 0, frames: 0, heights: []};
    const twoFrames = () => new Promise(done =>
        requestAnimationFrame(() => requestAnimationFrame(done)));
    let pressed = null, before = null;
    document.addEventListener('keydown', event => {
        [pressed, before] = [event.timeStamp, [figure()?.outerHTML,
                                               root.querySelector('table')?.outerHTML]];
    }, true);
    new MutationObserver(async () => {
        const table = root.querySelector('table')?.outerHTML;
        if (pressed === null || !figure() || figure().outerHTML === before[0]) return;
        if (before[1] !== undefined && table === before[1]) return;
        const start = pressed;
        pressed = null;
        if (figure().decode) await figure().decode().catch(() => 0);
        await twoFrames();
        probe.times.push(performance.now() - start);
    }).observe(root, {childList: true, subtree: true, attributes: true});
    const watch = () => {
        const height = Math.round(figure()?.getBoundingClientRect().height ?? 0);
        const loaded = figure()?.complete ?? true;
        probe.frames += 1;
        probe.blank += height === 0 || !loaded;
        if (!probe.heights.includes(height)) probe.heights.push(height);
        requestAnimationFrame(watch);
    };
    watch();
}"""


@dataclass(frozen=True)
class Latency:
    """Times of all presses of one panel, and what was seen between them."""

    times_ms: list[float]
    blank_frames: int
    frames: int
    heights_px: list[int]

    @property
    def median_ms(self) -> float:
        return statistics.median(self.times_ms)

    @property
    def p95_ms(self) -> float:
        return statistics.quantiles(self.times_ms, n=20)[-1]


def measure(page: Page, slider: int, presses: int, screenshots: Path | None) -> Latency:
    """Press arrow keys on a slider, each after the answer to the one before."""
    pauses = random.Random(0)  # the screen's frames must not fall into step with the presses
    page.evaluate(_PROBE)
    page.locator(".noUi-handle").nth(slider).focus()
    for press in range(presses):
        page.keyboard.press(_KEYS[press % len(_KEYS)])
        page.wait_for_function("count => probe.times.length > count", arg=press, timeout=10_000)
        page.wait_for_timeout(pauses.uniform(30, 80))
        if screenshots and press < len(_KEYS):
            page.screenshot(path=f"{screenshots}-{press}.png")
    seen = page.evaluate("probe")
    return Latency(seen["times"], seen["blank"], seen["frames"], seen["heights"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--presses", type=int, default=60)
    parser.add_argument("--screenshots", type=Path, help="a folder for pictures of all panels")
    options = parser.parse_args()
    if options.screenshots:
        options.screenshots.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as home:
        results = _measure_all(Path(home), options.presses, options.screenshots)
    _print(results)


def _measure_all(home: Path, presses: int, screenshots: Path | None) -> dict[str, Latency]:
    root = home / "root"
    root.mkdir()
    for name, (code, _) in _CASES.items():
        nbformat.write(lab.notebook(code), root / f"{name}.ipynb")
    results = {}
    with lab.chromium() as browser, lab.running_lab(root, home) as running:
        for name, (_, slider) in _CASES.items():
            page = running.new_page(browser)
            running.open(page, f"{name}.ipynb")
            lab.run_all(page)
            page.locator(".noUi-handle").first.wait_for()
            where = screenshots / name if screenshots else None
            results[name] = measure(page, slider, presses, where)
            page.close()
    return results


def _print(results: dict[str, Latency]) -> None:
    base = results["interact"].median_ms
    heads = f"{'panel':<16}{'presses':>8}{'median ms':>11}{'p95 ms':>8}{'of interact':>13}"
    print(f"{heads}   blank frames")
    for name, found in results.items():
        print(
            f"{name:<16}{len(found.times_ms):>8}{found.median_ms:>11.1f}{found.p95_ms:>8.1f}"
            f"{found.median_ms / base:>12.0%}   {found.blank_frames} of {found.frames}"
            f", heights {found.heights_px} px"
        )


if __name__ == "__main__":
    main()
