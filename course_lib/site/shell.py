"""What stands around the text of a page: its head, the menu, and what leads on."""

import html
from collections.abc import Iterable, Sequence
from functools import cache
from itertools import groupby
from pathlib import Path
from string import Template

from course_lib.building.notebooks import rounded
from course_lib.figures.paper import style
from course_lib.outline import TITLES
from course_lib.sittings import Sitting, route_rows, sittings

STATIC = Path(__file__).parent / "static"
COURSE = "How large models are trained on many accelerators"
PAGES = {"glossary": "Glossary 术语表", "from_the_notes": "From the notes 笔记索引"}


@cache
def _template() -> Template:
    return Template((STATIC / "page.html").read_text(encoding="utf-8"))


def page(title: str, body: str, *, here: str = "", more: str = "", ends: str = "") -> str:
    """A whole page; `here` is its path in the site, such as "notebooks/glossary.html"."""
    up = ".." if "/" in here else "."
    return _template().substitute(
        title=html.escape(f"{title} · {COURSE}" if title != COURSE else title),
        course=COURSE,
        up=up,
        more=more,
        body=body,
        menu=_menu(here, up),
        ends=ends,
    )


def _link(words: str, path: str, here: str, up: str) -> str:
    current = ' aria-current="page"' * (path == here)
    return f'<a href="{up}/{path}"{current}>{html.escape(words)}</a>'


def _menu(here: str, up: str) -> str:
    """The sittings by chapter, with their minutes; the chapter of this page is unfolded."""
    parts = []
    for chapter, group in groupby(sittings(), lambda each: each.chapter):
        own = list(group)
        items = [
            f"{_link(each.title, f'notebooks/{each.name}.html', here, up)} "
            f"<small>{minutes(each)}</small>"
            for each in own
        ]
        files = {f"notebooks/{each.name}.html" for each in own}
        if any(each.exercises for each in own):
            for folder in ("exercises", "solutions"):
                files.add(f"{folder}/{_room(own[0])}.html")
                items.append(_link(folder.capitalize(), f"{folder}/{_room(own[0])}.html", here, up))
        listed = "".join(f"<li>{item}</li>" for item in items)
        unfolded = " open" * (here in files)
        title = html.escape(f"{chapter} {TITLES[chapter]}")
        parts.append(f"<details{unfolded}><summary>{title}</summary><ul>{listed}</ul></details>")
    others = [_link(words, f"notebooks/{name}.html", here, up) for name, words in PAGES.items()]
    others.append(_link("Reference of the library", "reference/course_lib.html", here, up))
    return "".join(parts) + f"<ul>{''.join(f'<li>{other}</li>' for other in others)}</ul>"


def _room(sitting: Sitting) -> str:
    """The name of the exercises of its chapter: "07_ddp"."""
    from course_lib.texts import room_of

    return room_of(sitting.chapter).name.removeprefix("ch")


def minutes(sitting: Sitting) -> str:
    """How long it takes to read, without its folded parts unless it is nothing else."""
    return f"{rounded(sitting.reading)} min" + ", optional" * sitting.is_deeper


def ends(name: str) -> str:
    """Links to the sittings before and after one, by the thread, which leaves deeper ones out."""
    order = list(sittings())
    names = [each.name for each in order]
    if name not in names:
        return ""
    at = names.index(name)
    before = [each for each in order[:at] if not each.is_deeper][-1:]
    after = [each for each in order[at + 1 :] if not each.is_deeper][:1]
    left = "".join(f'<a href="{e.name}.html">← {html.escape(e.title)}</a>' for e in before)
    right = "".join(f'<a href="{e.name}.html">{html.escape(e.title)} →</a>' for e in after)
    return f"<span>{left}</span><span>{right}</span>"


def front() -> str:
    """The first page: what it is, the map of the sittings, the routes."""
    first = sittings()[0]
    rows = [
        (
            str(each.chapter),
            f'<a href="notebooks/{each.name}.html">{html.escape(each.title)}</a><br>'
            f"{html.escape(each.question)}",
            minutes(each),
        )
        for each in sittings()
    ]
    routes = [tuple(map(html.escape, (name.strip("`"), *rest))) for name, *rest in route_rows()]
    return f"""<h1>{COURSE}</h1>
<p>From “what is a batch” to a plan for a 70B run on two thousand GPUs: predict a number, measure
it, explain the gap. These pages are the course's notebooks as they ran, to be read without
installing anything; panels move on the page. To predict, write and check you need the notebooks
themselves.</p>
<p>Begin with <a href="notebooks/{first.name}.html">{html.escape(first.title)}</a>.</p>
<h2 id="Sittings">Sittings</h2>
{_table(("", "sitting, and what it answers", "time"), rows)}
<h2 id="Routes">Routes</h2>
{_table(("route", "what it leads to", "sittings", "hours"), routes)}
"""


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    def line(cells: Sequence[str], tag: str) -> str:
        return f"<tr>{''.join(f'<{tag}>{cell}</{tag}>' for cell in cells)}</tr>"

    lines = "".join(line(row, "td") for row in rows)
    table = f"<thead>{line(head, 'th')}</thead><tbody>{lines}</tbody>"
    return f'<div class="wide"><table>{table}</table></div>'


def colours() -> str:
    """The variables of the site's colours, from the table of the figures, in both themes."""
    sides = {
        "light": ({each: each for each in style.DARK}, style.BLUE),
        "dark": (style.DARK, style.SKY),
    }
    blocks = {theme: _variables(page, link) for theme, (page, link) in sides.items()}
    return (
        f":root{{{blocks['light']};color-scheme:light}}\n"
        f"@media (prefers-color-scheme:dark){{:root{{{blocks['dark']};color-scheme:dark}}}}\n"
        f":root[data-theme=light]{{{blocks['light']};color-scheme:light}}\n"
        f":root[data-theme=dark]{{{blocks['dark']};color-scheme:dark}}\n"
        # Paper is white, whatever the screen is.
        f"@media print{{:root,:root[data-theme]{{{blocks['light']};color-scheme:light}}}}\n"
    )


def _variables(page: dict[str, str], link: str) -> str:
    ink, grey, pale, white = (
        page[each] for each in (style.INK, style.GREY, style.PALE, style.WHITE)
    )
    quiet = f"color-mix(in srgb,{grey} 60%,{ink})"
    found = {
        "jp-content-font-color1": ink,
        "jp-content-font-color2": grey,
        "jp-ui-font-color0": ink,
        "jp-ui-font-color1": ink,
        "jp-ui-font-color2": grey,
        "jp-layout-color0": white,
        "jp-layout-color1": f"color-mix(in srgb,{pale} 50%,{white})",
        "jp-layout-color2": pale,
        "jp-border-color1": f"color-mix(in srgb,{grey} 40%,{white})",
        "jp-content-link-color": link,
        "jp-brand-color1": link,
        "jp-warn-color1": style.WARNING,
        "jp-content-font-family": "system-ui,sans-serif",
        "jp-ui-font-family": "system-ui,sans-serif",
        "course-comment": quiet,
        "course-string": f"color-mix(in srgb,{style.WARNING} 70%,{ink})",
    }
    return ";".join(f"--{name}:{value}" for name, value in found.items())
