"""Sources are shown as they are: folded when long, highlighted by classes, plain in a terminal."""

import html
import inspect
import re

import pytest

from course_lib import scratch, show, show_source
from course_lib.show import OPEN_LINES, Source


def text_of(page):
    return html.unescape(re.sub(r"<[^>]+>", "", page))


def test_a_terminal_gets_the_plain_source():
    assert repr(show_source(show.recorded)) == inspect.getsource(show.recorded).rstrip()


def test_a_page_gets_every_character_and_a_line_that_names_it():
    source = inspect.getsource(show_source).rstrip()
    shown = show_source(show_source)._repr_html_()
    lines = source.count("\n") + 1
    assert text_of(shown).rstrip() == f"Source: show_source, {lines} lines{source}"
    assert 'class="highlight"' in shown and '<span class="k">def</span>' in shown
    assert "style=" not in shown, "an untrusted notebook loses styles, and colours are the theme's"


def test_only_a_long_source_is_folded():
    short, long = ("\n".join(["x = 1 < 2"] * lines) for lines in (OPEN_LINES, OPEN_LINES + 1))
    assert Source(short)._repr_html_().startswith("<details open><summary>Source, 12 lines<")
    assert Source(long)._repr_html_().startswith("<details><summary>Source, 13 lines<")
    assert "<summary>Answer &lt;1&gt;, 1 line<" in Source("1", "Answer <1>")._repr_html_()


def test_several_things_methods_and_modules_are_named():
    assert show_source(show.Source.__init__, show_source).title == (
        "Source: Source.__init__, show_source"
    )
    assert show_source(scratch.accumulation).title == "Source: scratch.accumulation"
    assert show_source(Source).title == "Source: Source"

    def inner(): ...

    assert show_source(inner).title == "Source: inner"


def test_what_has_no_source_gets_a_sentence():
    with pytest.raises(TypeError, match="show_source takes functions, classes or modules, got 3"):
        show_source(3)
