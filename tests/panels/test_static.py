"""Where no kernel runs, a panel is a picture with words."""

import json
import re
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbconvert import HTMLExporter
from traitlets.config import Config

SOURCE = "from course_lib.chapters.ch03_what_is_in_the_memory import panels\npanels.memory()"


README = Path(__file__).parents[2] / "README.md"


def test_static_page_shows_a_picture() -> None:
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(SOURCE)])
    # Widget state belongs to the kernel that is gone, and is not stored.
    NotebookClient(notebook, kernel_name="python3", store_widget_state=False, timeout=120).execute()
    page, _ = HTMLExporter().from_notebook_node(notebook)
    assert _shows_a_picture(page)
    assert "VBox(" not in page
    text = notebook.cells[0].outputs[0].data["text/plain"]
    assert "it does not fit in 24.00 GB" in text


def test_a_saved_notebook_shows_it_with_the_option_that_the_readme_names() -> None:
    """Saved by JupyterLab, with the state of its widgets."""
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(SOURCE)])
    NotebookClient(notebook, kernel_name="python3", timeout=120).execute()
    (option,) = re.findall(r"display_data_priority='(.+)'", README.read_text(encoding="utf-8"))
    wanted = Config({"NbConvertBase": {"display_data_priority": json.loads(option)}})
    for config, shown in ((Config(), False), (wanted, True)):
        page, _ = HTMLExporter(config=config).from_notebook_node(notebook)
        assert _shows_a_picture(page) == shown


def _shows_a_picture(page: str) -> bool:
    return '<img alt="' in page and 'data-mime-type="image/svg+xml"' in page
