"""`course lab`: opens JupyterLab."""

from course_lib.lab.start import command, has_browser, open_lab, require_free

__all__ = ["command", "has_browser", "open_lab", "require_free"]
