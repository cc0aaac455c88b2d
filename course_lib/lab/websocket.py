"""A kernel connection for JupyterLab that does not wait before it sends: sliders feel instant."""

from typing import Any

from jupyter_server.services.kernels.connection.channels import ZMQChannelsWebsocketConnection


class PromptConnection(ZMQChannelsWebsocketConnection):
    """Jupyter's own connection with TCP_NODELAY set.

    Otherwise TCP holds a small message back until the browser has acknowledged the one before
    (Nagle's algorithm), which takes about 40 ms: as long as all the rest of a slider's step.
    """

    def connect(self) -> Any:
        """Connect as usual."""
        self.websocket_handler.set_nodelay(True)
        return super().connect()
