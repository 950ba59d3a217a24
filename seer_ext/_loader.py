"""Loads the compiled module, or says in one sentence why that can't be.

Versions are compared before the module is touched: a library that doesn't fit its torch fails with a missing
symbol at best.
"""

from __future__ import annotations

import importlib
import importlib.machinery
import json
import platform
import re
import sys
from pathlib import Path

from seer_ext._version import __version__

BUILD_INFO = Path(__file__).with_name("_build_info.json")
REBUILD = "Rebuild it: `pip install --force-reinstall --no-deps .` in Seer's source folder."


def reporting() -> bool:
    """True while `python -m seer_ext.info` imports the package: a report on a broken install
    can't need a sound one."""
    return sys.argv[:1] == ["-m"] and "seer_ext.info" in sys.orig_argv


def build_info() -> dict:
    """What the compiled module was built for, from the record beside it."""
    try:
        record = json.loads(BUILD_INFO.read_text())
        return record | {key: str(record[key]) for key in ("torch", "torch_target", "python")}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ImportError(
            f"seer_ext {__version__} has no compiled extension ({BUILD_INFO.name} can't be read: {error!r}). {REBUILD}"
        ) from None


def extension_file() -> Path | None:
    """The compiled module for this Python."""
    names = (f"_C{suffix}" for suffix in importlib.machinery.EXTENSION_SUFFIXES)
    return next((path for path in map(BUILD_INFO.with_name, names) if path.exists()), None)


def _release(version: str) -> tuple[int, int]:
    found = re.match(r"(\d+)\.(\d+)", version)
    return (int(found[1]), int(found[2])) if found else (0, 0)


def load():
    """Imports torch and `seer_ext._C`, which registers torch.ops.seer, and returns the latter."""
    built = build_info()
    want = f"seer_ext {__version__} is built for torch >= {built['torch_target']} (against {built['torch']})"
    try:
        import torch
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise ImportError(f"{want}, but torch doesn't import: {error}") from error
        raise ImportError(f"{want}, but found none: `pip install torch` first.") from None
    except (ImportError, OSError) as error:  # a broken torch
        raise ImportError(f"{want}, but torch doesn't import: {error}") from error

    found = str(torch.__version__)
    release = _release(found)
    if release < _release(built["torch_target"]) or release[0] != _release(built["torch"])[0]:
        raise ImportError(f"{want}, but found torch {found}. Install a torch that fits, or rebuild seer_ext.")
    if extension_file() is None:
        raise ImportError(
            f"{want} and Python {built['python']}, but has no extension for Python "
            f"{platform.python_version()}. {REBUILD}"
        )
    try:
        return importlib.import_module("seer_ext._C")
    except ImportError as error:
        raise ImportError(f"{want}, and doesn't load with torch {found}: {error}. {REBUILD}") from error
