"""Where no kernel runs, a panel is a picture with words."""

import copy
import json
import re
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient
from nbconvert import HTMLExporter
from traitlets.config import Config

SOURCE = "from course_lib.chapters.ch03_what_is_in_the_memory import panels\npanels.memory()"
README = Path(__file__).parents[2] / "README.md"


@pytest.fixture(scope="module")
def saved() -> nbformat.NotebookNode:
    """A notebook as JupyterLab saves it, with the state of its widgets."""
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(SOURCE)])
    NotebookClient(notebook, kernel_name="python3", timeout=120).execute()
    return notebook


def test_a_notebook_without_widgets_shows_a_picture_and_words(saved: nbformat.NotebookNode) -> None:
    """The state of widgets belongs to the kernel that is gone, and may not be stored."""
    alone = copy.deepcopy(saved)
    del alone.metadata["widgets"]
    assert _shows_a_picture(alone, Config())
    assert "it does not fit in 24.00 GB" in alone.cells[0].outputs[0].data["text/plain"]


def test_a_saved_notebook_shows_it_with_the_option_that_the_readme_names(
    saved: nbformat.NotebookNode,
) -> None:
    (option,) = re.findall(r"display_data_priority='(.+)'", README.read_text(encoding="utf-8"))
    wanted = Config({"NbConvertBase": {"display_data_priority": json.loads(option)}})
    assert not _shows_a_picture(saved, Config()) and _shows_a_picture(saved, wanted)


def _shows_a_picture(notebook: nbformat.NotebookNode, config: Config) -> bool:
    page, _ = HTMLExporter(config=config).from_notebook_node(notebook)
    picture = '<img alt="' in page and 'data-mime-type="image/svg+xml"' in page
    return picture and "VBox(" not in page
