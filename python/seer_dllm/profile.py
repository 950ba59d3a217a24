"""The file of a profile: `seer_profile.json` in a checkpoint's folder, or wherever `load` is told to look.

`{"version": 1, "profile": {...}, "evidence": {...}}`: the fields of `Profile` (those left out have their defaults) and
what they rest on, as `seer calibrate` writes it. Nothing reads the evidence but people.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from seer_dllm.config import Profile, from_mapping, read_json
from seer_dllm.files import written_whole

PROFILE_FILE = "seer_profile.json"
VERSION = 1


def read_profile(file: Path) -> Profile:
    """The profile of a file. FileNotFoundError, or ValueError naming the file, if there is none that can be used."""
    if not file.is_file():
        raise FileNotFoundError(f"profile must be a file, got {str(file)!r}")
    content = read_json(file)
    if content.get("version") != VERSION:
        raise ValueError(f"{file}: version must be {VERSION}, got {content.get('version')!r}; calibrate anew")
    unknown = sorted(set(content) - {"version", "profile", "evidence"})
    if unknown or not isinstance(content.get("profile"), dict):
        found = ", ".join(map(repr, content))
        raise ValueError(f"{file} must hold version, profile (an object) and, if any, evidence, got {found}")
    try:
        return from_mapping(Profile, content["profile"])
    except ValueError as error:
        raise ValueError(f"{file}: {error}") from None


def write_profile(file: Path, profile: Profile, evidence: Mapping[str, Any]) -> None:
    """Write a file that `read_profile` reads, whole or not at all."""
    content = {"version": VERSION, "profile": asdict(profile), "evidence": dict(evidence)}
    with written_whole(file) as partial:
        partial.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def find_profile(folder: Path, given: Profile | str | Path | None) -> Profile | None:
    """What was given (a profile or its file), else the folder's own; None if neither is there."""
    if isinstance(given, Profile):
        return given
    if given is not None and not isinstance(given, str | Path):
        raise ValueError(f"profile must be a Profile, a file or None, got {given!r}")
    own = folder / PROFILE_FILE
    if given is None and not own.exists():
        return None
    return read_profile(own if given is None else Path(given))
