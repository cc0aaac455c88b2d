"""Writes files into a folder, and never over one that is there."""

from collections.abc import Mapping
from pathlib import Path


def write(files: Mapping[str, str], folder: Path) -> list[Path]:
    """The paths of the files, which are new or hold these texts already.

    Raises ValueError, before anything is written, where a file with another text is there, and for
    a folder that cannot be written.
    """
    paths = {folder / name: text for name, text in files.items()}
    try:
        for path, text in paths.items():
            if path.exists() and path.read_bytes() != text.encode():
                raise ValueError(
                    f"{path} is there already, with another text: move it away, or name another "
                    "folder"
                )
        folder.mkdir(parents=True, exist_ok=True)
        for path, text in paths.items():
            path.write_bytes(text.encode())
    except OSError as error:
        raise ValueError(
            f"{folder} cannot be written ({error.strerror}): name a folder of yours"
        ) from error
    return list(paths)
