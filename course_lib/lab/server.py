"""What `course lab` has JupyterLab's server do otherwise."""

import platform
from typing import Any

from jupyter_server.services.contents.largefilemanager import AsyncLargeFileManager
from jupyter_server.services.kernels.connection.channels import ZMQChannelsWebsocketConnection


class Contents(AsyncLargeFileManager):
    """Jupyter's own files, with the version of Python that its kernel will report.

    Where JupyterLab has nothing to add to a notebook, its tab does not say "unsaved".
    """

    async def get(self, *path: Any, **options: Any) -> Any:
        """A file as usual."""
        model = await super().get(*path, **options)  # type: ignore[no-untyped-call]
        if model["type"] == "notebook" and model["content"]:
            language = model["content"]["metadata"].get("language_info", {})
            if language.get("name") == "python":
                language["version"] = platform.python_version()
        return model


class PromptConnection(ZMQChannelsWebsocketConnection):
    """Jupyter's own connection with TCP_NODELAY set.

    Otherwise TCP holds a small message back until the browser has acknowledged the one before
    (Nagle's algorithm), which takes about 40 ms: as long as all the rest of a slider's step.
    """

    def connect(self) -> Any:
        """Connect as usual."""
        self.websocket_handler.set_nodelay(True)
        return super().connect()
