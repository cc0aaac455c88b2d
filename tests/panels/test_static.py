"""Where no kernel runs, a panel is a picture with words."""

import nbformat
from nbclient import NotebookClient
from nbconvert import HTMLExporter

SOURCE = "from course_lib import panels\npanels.memory()"


def test_static_page_shows_a_picture() -> None:
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(SOURCE)])
    # Widget state belongs to the kernel that is gone, and is not stored.
    NotebookClient(notebook, kernel_name="python3", store_widget_state=False, timeout=120).execute()
    page, _ = HTMLExporter().from_notebook_node(notebook)
    assert '<img alt="' in page and "data:image/png;base64," in page
    assert "VBox(" not in page
    text = notebook.cells[0].outputs[0].data["text/plain"]
    assert "it does not fit in 24.00 GB" in text
