"""What each chapter's page is made of: figures, printed text, code and prose, by their height.

    python benchmarks/page_share.py [6 16 …] [--width 1280]

Each chapter is opened in JupyterLab as `course lab` starts it, and run. Heights are those in the
browser: what is folded counts as its one line. "other" is tables, controls, cards and padding.
"""

import argparse
import shutil
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "browser"))
import real_lab

NOTEBOOKS = Path(__file__).parents[1] / "notebooks"
real_lab.CELLS_TIMEOUT_MS = 600_000  # a busy machine takes its time
KINDS = ("figures", "printed", "code", "prose")


@dataclass(frozen=True)
class Share:
    """Heights of one page in pixels, by kind; its figures and the words of its prose."""

    name: str
    page_px: float
    heights_px: dict[str, float]
    figures: int
    words: int

    @property
    def line(self) -> str:
        """One row of the table."""
        shares = [self.heights_px[kind] / self.page_px for kind in KINDS]
        cells = "".join(f"{share:>9.0%}" for share in [*shares, 1 - sum(shares)])
        apart = f"{self.words / self.figures:,.0f}" if self.figures else "–"
        return f"{self.name:<30}{self.page_px:>8,.0f}{cells}{self.figures:>8}{apart:>10}"


HEAD = f"{'chapter':<30}{'px':>8}" + "".join(f"{kind:>9}" for kind in (*KINDS, "other"))
HEAD += f"{'figures':>8}{'words per':>10}"


def measured(chapters: list[Path], width: int) -> Iterator[Share]:
    """One share after the other, each as soon as its page has run."""
    with tempfile.TemporaryDirectory() as name:
        home = Path(name)
        root = home / "root"
        root.mkdir()
        for path in chapters:
            shutil.copy(path, root)
        with real_lab.chromium() as browser, real_lab.running_lab(root, home) as lab:
            for path in chapters:
                page = browser.new_page(viewport={"width": width, "height": 1000})
                lab.open(page, path.name)
                real_lab.run_all(page)
                page.wait_for_timeout(1000)  # the last figures are drawn
                yield Share(path.stem, **page.evaluate(_HEIGHTS))
                page.close()


_HEIGHTS = """() => {
    // Heights of what is seen of these elements; of two beside each other the taller counts.
    const height = elements => {
        const spans = elements.map(each => each.getBoundingClientRect())
            .filter(box => box.height > 0)
            .map(box => [box.top, box.bottom]).sort((a, b) => a[0] - b[0]);
        let sum = 0, end = -Infinity;
        for (const [top, bottom] of spans) {
            sum += Math.max(0, bottom - Math.max(top, end));
            end = Math.max(end, bottom);
        }
        return sum;
    };
    const all = selector => [...document.querySelectorAll(selector)];
    const output = '.jp-OutputArea-output';
    const figures = all(`${output} svg[role=img], ${output} img, .jp-MarkdownOutput img`)
        .filter(each => each.getBoundingClientRect().height >= 40);
    const prose = all('.jp-MarkdownCell');
    return {
        page_px: height(all('.jp-Notebook .jp-Cell')),
        heights_px: {
            figures: height(figures),
            printed: height(all(`${output}.jp-RenderedText`)),
            code: height(all('.jp-CodeCell .jp-Cell-inputWrapper')),
            prose: height(prose) - height(figures.filter(each => each.closest('.jp-MarkdownCell'))),
        },
        figures: figures.length,
        words: prose.flatMap(cell => cell.innerText.split(/\\s+/)).filter(word => word).length,
    };
}"""


def main() -> None:
    """Print a row for each chapter asked for, or for all."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("chapters", nargs="*", type=int, help="numbers; all when left out")
    parser.add_argument("--width", type=int, default=1280, help="of the window, in pixels")
    arguments = parser.parse_args()
    found = sorted(NOTEBOOKS.glob("[0-9][0-9]_*.ipynb"))
    wanted = set(arguments.chapters or range(100))
    chosen = [path for path in found if int(path.name[:2]) in wanted]
    if len(chosen) < len(set(arguments.chapters)):
        parser.error(f"chapters are 0 to {len(found) - 1}, got {sorted(wanted)}: give others")
    print(HEAD, flush=True)
    shares = []
    for share in measured(chosen, arguments.width):
        shares.append(share)
        print(share.line, flush=True)
    if len(shares) > 1:
        print(_together(shares).line)


def _together(shares: list[Share]) -> Share:
    heights = {kind: sum(share.heights_px[kind] for share in shares) for kind in KINDS}
    page_px = sum(share.page_px for share in shares)
    figures, words = sum(s.figures for s in shares), sum(s.words for s in shares)
    return Share("together", page_px, heights, figures, words)


if __name__ == "__main__":
    main()
