"""Files that appear whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def written_whole(path: Path) -> Iterator[Path]:
    """A path beside `path` to write to, which takes its place at the end, and is removed if the block fails."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        yield partial
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def check_output(name: str, path: Path | None) -> None:
    """ValueError if no file can be written there; to be asked before the work whose outcome it is to hold."""
    if path is None:
        return
    if path.is_dir():
        raise ValueError(f"{name} must be a file, got the folder {str(path)!r}")
    above = next((parent for parent in path.absolute().parents if parent.exists()), None)
    if above is not None and not above.is_dir():
        raise ValueError(f"{name} must lie in a folder, but {str(above)!r} is a file, got {str(path)!r}")
