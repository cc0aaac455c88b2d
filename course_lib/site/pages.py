"""Turns a notebook that was run into the body of a page."""

import html
import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import PythonLexer

from course_lib.checking.questions import questions
from course_lib.site.markdown import plain, to_html
from course_lib.texts import room_of

Cell = dict[str, Any]
_VIEW = "application/vnd.jupyter.widget-view+json"
_PICTURE = "image/svg+xml"  # of widgets, only panels have one
_STATES = "application/vnd.jupyter.widget-state+json"
_LEVEL = re.compile(r"<h(\d) id=")
_HATCH = re.compile(r"\bd(\d+-h\d+)\b")  # the ids of hatches, of which a page may have no two
ANSI = re.compile(r"\x1b\[[\d;]*m")  # the colours of a terminal
ON_PAPER = "There is no box on a page: write your number on paper, or run the notebook."
NO_SLIDER = "This panel moves where the notebook is run."


def text(source: str | list[str]) -> str:
    """A notebook's text, which may be stored as a list of lines."""
    return source if isinstance(source, str) else "".join(source)


class Section(NamedTuple):
    """A part of a page that can be found: its title, its anchor, its words."""

    title: str
    anchor: str
    words: str


@dataclass
class Notebook:
    """A notebook, run or not; `live` has what its panels show at first, by key, where they move."""

    name: str
    path: Path
    live: Mapping[str, Any] = field(default_factory=dict)

    @cached_property
    def data(self) -> dict[str, Any]:
        """Its JSON."""
        found: dict[str, Any] = json.loads(self.path.read_text(encoding="utf-8"))
        return found

    @property
    def cells(self) -> list[Cell]:
        """Its cells, without the lines of links at both ends."""
        cells: list[Cell] = self.data["cells"]
        return cells[1:-1] if cells[0]["source"] == cells[-1]["source"] else cells

    @property
    def title(self) -> str:
        """The first heading."""
        return plain(
            to_html(re.split(r"^# ", text(self.cells[0]["source"]), flags=re.M)[1]).split("\n")[0]
        )

    def panels(self) -> dict[str, str]:
        """{key: source} of the cells that show a panel."""
        return {
            self._key(cell): text(cell["source"])
            for cell in self.cells
            for output in cell.get("outputs", ())
            if {_VIEW, _PICTURE} <= {*output.get("data", ())}
        }

    def _key(self, cell: Cell) -> str:
        return f"{self.name}-{cell['id']}"

    def _state(self, output: Mapping[str, Any]) -> dict[str, Any]:
        """The state of the widget that an output shows, {} if it is none."""
        model = output.get("data", {}).get(_VIEW, {}).get("model_id")
        return self._widget(model)

    def _widget(self, model: str | None) -> dict[str, Any]:
        kept = self.data["metadata"].get("widgets", {}).get(_STATES, {}).get("state", {})
        state: dict[str, Any] = kept.get(model, {}).get("state", {})
        return state

    # --- HTML -------------------------------------------------------------------------------------

    def body(self) -> str:
        """The cells as HTML; what a first reader can leave out is folded."""
        parts: list[str] = []
        folds: list[int] = []  # the levels of those that are open
        seen: Counter[str] = Counter()
        for cell in self.cells:
            shown = _once(self._cell(cell), seen)
            level = int(found[1]) if (found := _LEVEL.match(shown)) else 9
            while folds and level <= folds[-1]:
                parts.append("</details>")
                folds.pop()
            if cell["metadata"].get("jp-MarkdownHeadingCollapsed"):
                head, end, rest = shown.partition(f"</h{level}>\n")
                shown = f'<details class="deeper"><summary>{head}{end}</summary>{rest}'
                folds.append(level)
            parts.append(shown)
        return "\n".join(parts) + "</details>" * len(folds)

    def sections(self) -> Iterator[Section]:
        """What the search finds: the page up to its first section, and each section."""
        found, inside, seen = ["", self.title], list[str](), Counter[str]()
        for cell in self.cells:
            if cell["cell_type"] != "markdown":
                continue
            page = _once(to_html(text(cell["source"])), seen)
            for part in re.split(r"(?=<h[23] id=)", page):
                if head := re.match(r'<h[23] id="([^"]*)">(.*?)</h', part):
                    yield Section(found[1], found[0], " ".join(inside))
                    found, inside = [html.unescape(head[1]), plain(head[2])], []
                    part = part[head.end() + 2 :]
                inside.append(re.sub(r"\s+", " ", plain(part)))
        yield Section(found[1], found[0], " ".join(inside))

    def _cell(self, cell: Cell) -> str:
        source = text(cell["source"])
        if cell["cell_type"] == "markdown":
            return to_html(source)
        outputs = [self._output(output, cell, at) for at, output in enumerate(cell["outputs"])]
        code = highlight(source, PythonLexer(), HtmlFormatter(nowrap=True))
        block = f'<pre class="wide code highlight">{code}</pre>'
        if cell["metadata"].get("jupyter", {}).get("source_hidden"):
            first, _, _ = source.partition("\n")
            block = f"<details><summary>{html.escape(first.strip('# '))}</summary>{block}</details>"
        return "\n".join([block, *outputs])

    def _output(self, output: dict[str, Any], cell: Cell, at: int) -> str:
        if output["output_type"] in ("stream", "error"):
            said = output.get("text") or "\n".join(output.get("traceback", ()))
            return _words(text(said))
        data = output["data"]
        key = self._key(cell)
        if _VIEW in data:
            return self._shown(self._state(output), data, key)
        if "text/html" in data:
            return f'<div class="output">{_own(text(data["text/html"]), f"{key}-{at}")}</div>'
        if "text/markdown" in data:
            return to_html(text(data["text/markdown"]))
        if picture := data.get("image/png"):
            name = html.escape(text(data.get("text/plain", "a figure")))
            return f'<img alt="{name}" src="data:image/png;base64,{text(picture).strip()}">'
        return _words(text(data.get("text/plain", "")))

    def _shown(self, state: dict[str, Any], data: dict[str, Any], key: str) -> str:
        """A widget: a panel that moves or does not, several of them, a quiz, an input box."""
        if _PICTURE in data:
            return _panel(state or text(data[_PICTURE]), self.live.get(key), key)
        if "committed" in state:
            return f'<p class="quiet">{ON_PAPER}</p>'
        if "answers" in state:
            return _quiz(re.findall(r"\d+", state["title"])[0])
        children = [
            self._widget(name.removeprefix("IPY_MODEL_")) for name in state.get("children", ())
        ]
        panels = [child for child in children if "controls" in child and "shown" in child]
        if panels:
            return "".join(_panel(one, None, f"{key}-{at}") for at, one in enumerate(panels))
        return f'<p class="quiet">{NO_SLIDER}</p>'


def _once(page: str, seen: Counter[str]) -> str:
    """HTML in which a heading that was `seen` on its page gets an id of its own."""

    def own(found: re.Match[str]) -> str:
        seen[found[2]] += 1
        return f"{found[0]}-{seen[found[2]]}" if seen[found[2]] > 1 else found[0]

    return re.sub(r'(<h\d id=")([^"]+)', own, page)


def _own(page: str, key: str) -> str:
    """HTML whose hatches have ids that no other part of the page has; what is wide scrolls."""
    page = _HATCH.sub(lambda found: f"{key}-d{found[1]}", page)
    return page.replace("<pre>", '<pre class="wide">')


def _panel(state: Mapping[str, Any] | str, live: Mapping[str, Any] | None, key: str) -> str:
    """A panel as a picture with its numbers; `live`: with all that makes it move.

    `state` may be the picture alone, where a notebook was saved without the state of its widgets.
    """
    told = live or state
    if isinstance(told, str):
        return f'<div class="output">{_own(told, key)}<p class="quiet">{NO_SLIDER}</p></div>'
    shown = told["shown"]
    caption = f'<p class="course-caption">{html.escape(shown["caption"])}</p>'
    settings = ", ".join(
        f"{spec['label']} {_value(spec, told['values'][spec['name']])}" for spec in told["controls"]
    )
    still = (
        f'<p class="settings">{html.escape(settings)}</p>{caption * bool(shown["caption"])}'
        f'<div class="course-figure">{_own(shown["page"], key)}</div>'
    )
    if live is None:
        return f'<div class="output course-panel">{still}<p class="quiet">{NO_SLIDER}</p></div>'
    kept = {**live, "shown": {name: part for name, part in shown.items() if name != "page"}}
    data = json.dumps(kept, ensure_ascii=False).replace("<", "\\u003c")
    return (
        f'<div class="output live" id="{key}"><div class="course-panel">{still}</div>'
        f'<script type="application/json">{data}</script></div>'
    )


def _value(spec: Mapping[str, Any], index: int) -> str:
    value = spec["texts"][index] if "texts" in spec else f"{spec['least'] + index:,}"
    return f"{value} {spec['unit']}".rstrip()


def _quiz(chapter: str) -> str:
    """The questions of a chapter's quiz, the answer to each folded below it."""
    items = []
    for question in questions(room_of(int(chapter))):
        choices = "".join(f"<li>{html.escape(choice)}</li>" for choice in question.choices)
        right = html.escape(f"{question.choices[question.answer]}. {question.why}")
        items.append(
            f'<li>{html.escape(question.text)}<ol type="a">{choices}</ol>'
            f"<details><summary>Answer</summary><p>{right}</p></details></li>"
        )
    return f'<ol class="output">{"".join(items)}</ol>'


def _words(said: str) -> str:
    shown = html.escape(ANSI.sub("", said.rstrip()))
    return f'<pre class="wide output">{shown}</pre>' if shown else ""


def sources(notebooks: Sequence[Notebook]) -> dict[str, str]:
    """{key: source} of all cells with a panel."""
    return {key: source for each in notebooks for key, source in each.panels().items()}
