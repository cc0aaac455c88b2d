"""Notebooks for JupyterLab, complete: where it has nothing to add, a tab does not say "unsaved"."""

import platform
from typing import Any

from jupyter_server.services.contents.largefilemanager import AsyncLargeFileManager


class Contents(AsyncLargeFileManager):
    """Jupyter's own files, with the version of Python that its kernel will report."""

    async def get(self, *place: Any, **options: Any) -> Any:
        """A file as usual."""
        model = await super().get(*place, **options)  # type: ignore[no-untyped-call]
        if model["type"] == "notebook" and model["content"]:
            language = model["content"]["metadata"].get("language_info", {})
            if language.get("name") == "python":
                language["version"] = platform.python_version()
        return model
