"""The pages of the whole course, as they are before notebooks run: links, anchors, formulas."""

import json
import re
import sys
from collections import Counter
from html import unescape
from pathlib import Path
from urllib.parse import unquote

import pytest

sys.path.append(str(Path(__file__).parent))

from small_site import NEEDS_A_KERNEL, cells, notebook

from course_lib.problem import Problem
from course_lib.site import building, executing, packed, python
from course_lib.site.markdown import mathml, to_html
from course_lib.site.pages import Notebook

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """All pages, from notebooks without outputs, and without the reference."""
    folder = tmp_path_factory.mktemp("whole")
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(building, "_reference", lambda *_: None)
        wanted = building.Wanted(ROOT, folder / "kept", ROOT / "notebooks", still=True)
        building.build(wanted, folder / "site", say=lambda _: None)
    return folder / "site"


def ids(page):
    return [*map(unescape, re.findall(r'\bid="([^"]+)"', page))]


def test_every_link_leads_to_a_page_and_to_a_place_on_it(site):
    pages = {
        path.relative_to(site).as_posix(): path.read_text("utf-8") for path in site.rglob("*.html")
    }
    anchors = {name: ids(page) for name, page in pages.items()}
    lost = []
    for name, page in pages.items():
        for link in re.findall(r'\b(?:href|src)="([^"]+)"', page):
            if re.match(r"(?:https?|data|mailto):", link):
                continue
            path, _, place = unescape(link).partition("#")
            target = ((site / name).parent / unquote(path)).resolve() if path else site / name
            to = target.relative_to(site).as_posix()
            if to.startswith("reference/"):
                continue
            if not target.exists() or (place and unquote(place) not in anchors[to]):
                lost.append(f"{name}: {link}")
    assert lost == []
    assert len(pages) > 80


def test_every_page_has_one_title_and_no_formula_as_source(site):
    for path in site.rglob("*.html"):
        page = path.read_text("utf-8")
        assert page.count("<h1") == 1, path.name
        prose = re.sub(r"<(pre|code|script)\b.*?</\1>", "", page, flags=re.S)
        assert not re.search(r"\\(?:frac|cdot|text)\b|\$[^\s$][^$\n]*\$", prose), path.name
        assert not [name for name, times in Counter(ids(page)).items() if times > 1], path.name


def test_what_is_optional_is_folded_and_its_heading_is_where_links_lead(site):
    page = (site / "notebooks" / "06_2_trees_and_benchmarks.html").read_text("utf-8")
    folded = re.findall(r'<details class="deeper"><summary><h[23] id="([^"]+)">(.*?)</h', page)
    assert folded and all("optional" in title and "optional" not in key for key, title in folded)
    assert page.count("<details") == page.count("</details>")


def test_the_search_index_has_both_languages(site):
    script = (site / "assets" / "search.js").read_text("utf-8")
    index = json.loads(script.removeprefix("window.courseIndex = ").removesuffix(";\n"))
    assert any("梯度累加" in part["words"] for part in index)
    assert len(index) > 250 and all(
        (site / part["url"].partition("#")[0]).exists() for part in index
    )


def test_all_but_one_panel_need_only_python(tmp_path):
    """What a page has: Python's own modules, and the zip."""
    (tmp_path / "course.zip").write_bytes(python.library(cells().values()))
    found = python.states(cells(), tmp_path / "course.zip")
    assert {name for name, state in found.items() if isinstance(state, str)} == NEEDS_A_KERNEL
    assert "numpy" in str(found["planner"])
    assert (tmp_path / "course.zip").stat().st_size < 500_000


def test_a_notebook_runs_once_and_again_when_the_library_changed(tmp_path, monkeypatch):
    path = tmp_path / "01_all.ipynb"
    path.write_text(notebook({"one": "print(6 * 7)"}), encoding="utf-8")
    first = executing.run(path, tmp_path / "kept")
    page = Notebook("01_all", first).body()
    assert re.search(r'<pre class="wide output">42</pre>', page)
    monkeypatch.setattr(executing, "_executed", lambda _: pytest.fail("it was run before"))
    assert executing.run(path, tmp_path / "kept") == first
    monkeypatch.setattr(executing, "_executed", lambda _: "{}")
    monkeypatch.setattr(executing, "digest", lambda room: "another library")
    assert executing.run(path, tmp_path / "kept") != first and not first.exists()


def test_a_failing_cell_ends_the_build(tmp_path):
    path = tmp_path / "01_all.ipynb"
    path.write_text(notebook({"one": "1 / 0"}), encoding="utf-8")
    with pytest.raises(Problem, match=r"01_all\.ipynb does not run: ZeroDivisionError"):
        executing.run(path, tmp_path / "kept")


def test_a_site_travels_as_one_file(site, tmp_path):
    packed.pack(site, tmp_path / "built.zip")
    packed.unpack(tmp_path / "there", tmp_path / "built.zip")
    packed.unpack(tmp_path / "there", tmp_path / "built.zip")  # over an older one
    names = [sorted(p.relative_to(at) for p in at.rglob("*")) for at in (site, tmp_path / "there")]
    assert names[0] == names[1]


@pytest.mark.parametrize(
    ("break_it", "said"),
    [
        (lambda at: (at / "mine.txt").write_text(""), "has files and is no site of this course"),
        (lambda at: (at.rmdir(), at.write_text("")), "is a file: name a folder"),
    ],
)
def test_no_file_of_somebody_else_is_overwritten(tmp_path, break_it, said):
    (tmp_path / "there").mkdir()
    break_it(tmp_path / "there")
    with pytest.raises(Problem, match=said):
        building.require_ours(tmp_path / "there")


def test_another_pyodide_and_none_are_refused(tmp_path):
    (tmp_path / python.TARBALL).write_bytes(b"another")
    with pytest.raises(Problem, match=r"is not the release 314.*npm pack pyodide@314"):
        python.tarball(tmp_path, tmp_path)
    with pytest.raises(Problem, match=r"is not at .*absent"):
        python.tarball(tmp_path / "absent", tmp_path)


@pytest.mark.parametrize(
    ("formula", "said"),
    [(r"\left( a", "cannot be shown .*: correct it"), (r"\foo a", r"has \\foo, which is unknown")],
)
def test_a_formula_that_cannot_be_read_names_itself(formula, said):
    assert "<mfrac>" in to_html(r"So $\frac{a}{b}$ and")
    with pytest.raises(Problem, match=said):
        mathml(formula, "inline")
