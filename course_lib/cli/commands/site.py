"""`course site`."""

import argparse
from pathlib import Path

from course_lib import home

ABOUT = "the course as web pages, with panels that move, without Jupyter and without a network"


def add_options(parser: argparse.ArgumentParser) -> None:
    """Where it goes, and what it is made from."""
    parser.add_argument("directory", metavar="DIRECTORY", type=Path, help="where the pages go")
    parser.add_argument(
        "--executed",
        metavar="FOLDER",
        type=Path,
        help="notebooks that were run already (default: those of the last build, else run now)",
    )
    parser.add_argument(
        "--pyodide",
        metavar="FILE",
        type=Path,
        help="the release of Pyodide that moves panels, as npm packs it (default: fetched once)",
    )
    parser.add_argument("--still", action="store_true", help="panels as pictures, without Pyodide")
    parser.add_argument(
        "--serve", action="store_true", help="show it to this machine's browsers until Ctrl-C"
    )
    parser.add_argument("--port", type=int, default=0, help="for --serve (default: a free one)")
    parser.add_argument(
        "--into-package", action="store_true", help="keep it for the wheel as well (for releases)"
    )


def run(arguments: argparse.Namespace) -> int:
    """Build it, or unpack what came with the wheel; say where it is; serve it if asked."""
    from platformdirs import user_cache_dir

    from course_lib.site import packed
    from course_lib.site.building import Wanted, build

    folder: Path = arguments.directory.resolve()
    if root := home.clone():
        made_of = (arguments.executed, arguments.pyodide, arguments.still)
        build(Wanted(root, Path(user_cache_dir("large-model-course")), *made_of), folder)
        if arguments.into_package:
            packed.pack(folder)
    else:
        packed.unpack(folder)
    print(f"{folder / 'index.html'}: open it; panels move where it is served, as by --serve")
    if arguments.serve:
        with packed.server(folder, arguments.port) as server:
            print(f"http://127.0.0.1:{server.server_port}/ until Ctrl-C", flush=True)
            server.serve_forever()
    return 0
