"""The site as one file, which a release puts into the wheel, and a server of it for one machine."""

import mimetypes
import zipfile
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from course_lib.problem import Problem
from course_lib.site.building import require_ours

PACKED = Path(__file__).with_name("built.zip")


def pack(folder: Path, file: Path = PACKED) -> None:
    """Write the site in `folder` into one file."""
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for path in sorted(folder.rglob("*")):
            archive.write(path, path.relative_to(folder))


def unpack(folder: Path, file: Path = PACKED) -> None:
    """Lay the packed site out in `folder`.

    Raises Problem if there is none, or if the folder has other files.
    """
    if not file.exists():
        raise Problem("no pages came with this installation: build them in a clone of the course")
    require_ours(folder)
    with zipfile.ZipFile(file) as archive:
        archive.extractall(folder)


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        """Say nothing."""


def server(folder: Path, port: int = 0) -> ThreadingHTTPServer:
    """A server of the folder for browsers on this machine. Raises Problem if the port is taken."""
    # A machine's own table may lack these, and browsers run nothing of another type.
    mimetypes.add_type("text/javascript", ".mjs")
    mimetypes.add_type("text/javascript", ".js")
    mimetypes.add_type("application/wasm", ".wasm")
    try:
        return ThreadingHTTPServer(("127.0.0.1", port), partial(_Quiet, directory=str(folder)))
    except OSError as taken:
        raise Problem(f"port {port} cannot be opened ({taken}): choose another --port") from None
