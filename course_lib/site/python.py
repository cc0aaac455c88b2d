"""The Python of a page: Pyodide's core, and the part of this library that panels need."""

import ast
import hashlib
import io
import json
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterable, Mapping
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import course_lib
from course_lib.problem import Problem

VERSION = "314.0.7"
TARBALL = f"pyodide-{VERSION}.tgz"
SHA256 = "66b7949e5a0cba2250b586d7e368bf12fb482800748d182c4618254b685ffaa0"
CORE = (
    "pyodide.mjs",
    "pyodide.asm.mjs",
    "pyodide.asm.wasm",
    "python_stdlib.zip",
    "pyodide-lock.json",
)
GET = f"run `npm pack pyodide@{VERSION}` and give the file by --pyodide"
_LIBRARY = Path(course_lib.__file__).parent
_START = "course_lib.site.live"
_WIDGET = "course_lib.panels.widget"  # where a kernel is


# --- Pyodide --------------------------------------------------------------------------------------


def tarball(given: Path | None, kept: Path) -> bytes:
    """The pinned release of Pyodide: the file or folder `given`, else from `kept`, else from npm.

    Raises Problem if it is nowhere, or another one.
    """
    place = given / TARBALL if given and given.is_dir() else given
    if not place:
        place = kept / TARBALL
        if not place.exists():
            _fetch(kept)
    try:
        data = place.read_bytes()
    except OSError:
        raise Problem(f"Pyodide {VERSION} is not at {place}: {GET}") from None
    if hashlib.sha256(data).hexdigest() != SHA256:
        raise Problem(f"{place} is not the release {VERSION} of Pyodide: delete it, then {GET}")
    return data


def _fetch(folder: Path) -> None:
    """Fetch the release by npm, once, from the registry that npm is set to."""
    folder.mkdir(parents=True, exist_ok=True)
    npm = shutil.which("npm")
    command = [npm or "npm", "pack", f"pyodide@{VERSION}", "--silent"]
    if not npm or subprocess.run(command, cwd=folder, capture_output=True).returncode:
        raise Problem(
            f"Pyodide {VERSION}, which moves sliders on a page, is not here and npm cannot fetch "
            f"it: where there is a network, {GET}, or build with --still"
        )


def unpack(data: bytes, folder: Path) -> None:
    """Write the core of Pyodide into `folder`."""
    with tarfile.open(fileobj=io.BytesIO(data)) as package:
        for name in CORE:
            file = package.extractfile(f"package/{name}")
            assert file is not None
            (folder / name).write_bytes(file.read())


# --- The library ----------------------------------------------------------------------------------


@cache
def _imports(module: str) -> tuple[Path, frozenset[str]]:
    """The file of a module, and the modules of ours that it imports, with their packages."""
    spec = find_spec(module)
    assert spec and spec.origin, module
    path = Path(spec.origin)
    return path, frozenset(_imported(path.read_text(encoding="utf-8")) | set(_packages(module)))


def _imported(code: str) -> set[str]:
    """The modules of this library that a piece of code imports, with their packages."""
    names = set()
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    ours = {part for name in names if name.startswith("course_lib") for part in _packages(name)}
    return set(filter(_is_module, ours - {_WIDGET}))


def _packages(name: str) -> list[str]:
    """The name of a module and those of the packages around it."""
    parts = name.split(".")
    return [".".join(parts[: count + 1]) for count in range(len(parts))]


def _is_module(name: str) -> bool:
    path = _LIBRARY.parent.joinpath(*name.split("."))
    return path.with_suffix(".py").exists() or (path / "__init__.py").exists()


def library(sources: Iterable[str]) -> bytes:
    """A zip of the modules that the cells `sources` need, directly or not, without widgets."""
    pending = [_START, *set().union(*map(_imported, sources))]
    found: dict[str, Path] = {}
    while pending:
        module = pending.pop()
        if module not in found:
            found[module], more = _imports(module)
            pending += more
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in sorted(found.values()):
            name = path.relative_to(_LIBRARY.parent).as_posix()
            archive.writestr(zipfile.ZipInfo(name), path.read_bytes(), zipfile.ZIP_DEFLATED, 9)
    return packed.getvalue()


# Only Python's own modules and the zip are there, as on a page.
_TRY = f"""
import json, sys
sys.path.insert(0, sys.argv[1])
sys.platform = "emscripten"
from {_START} import move
def told(key, source):
    try:
        return json.loads(move(key, source))
    except Exception as problem:
        return f"{{type(problem).__name__}}: {{problem}}"
print(json.dumps({{key: told(key, source) for key, source in json.load(sys.stdin).items()}}))
"""


def states(sources: Mapping[str, str], archive: Path) -> dict[str, dict[str, object] | str]:
    """{key: what its panel shows at first} of cells, or in a sentence why it needs a kernel."""
    command = [sys.executable, "-I", "-S", "-c", _TRY, str(archive)]
    done = subprocess.run(command, input=json.dumps(sources), capture_output=True, text=True)
    if done.returncode:
        raise Problem(f"the library for pages does not run: {done.stderr.strip()[-500:]}")
    found: dict[str, dict[str, object] | str] = json.loads(done.stdout)
    return found
