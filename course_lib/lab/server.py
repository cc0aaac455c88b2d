"""The changes that `course lab` makes to JupyterLab's server."""

import platform
from typing import Any

from jupyter_server.services.contents.largefilemanager import AsyncLargeFileManager
from jupyter_server.services.kernels.connection.channels import ZMQChannelsWebsocketConnection


class Contents(AsyncLargeFileManager):
    """Jupyter's contents manager; adds the Python version that the kernel will report.

    JupyterLab then has nothing to add to a notebook, and its tab does not show it as unsaved.
    """

    async def get(self, *path: Any, **options: Any) -> Any:
        """The model of a file; a notebook's with the Python version in its metadata."""
        model = await super().get(*path, **options)  # type: ignore[no-untyped-call]
        if model["type"] == "notebook" and model["content"]:
            language = model["content"]["metadata"].get("language_info", {})
            if language.get("name") == "python":
                language["version"] = platform.python_version()
        return model


class PromptConnection(ZMQChannelsWebsocketConnection):
    """Jupyter's websocket connection with TCP_NODELAY set.

    Otherwise TCP delays a small message until the browser has acknowledged the previous one
    (Nagle's algorithm), which takes about 40 ms: as long as all the rest of a slider's step.
    """

    def connect(self) -> Any:
        """Set TCP_NODELAY, then connect."""
        self.websocket_handler.set_nodelay(True)
        return super().connect()
