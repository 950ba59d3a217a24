"""Long work that goes on where it stopped: a JSONL file, its head saying what it belongs to, then a line per part."""

from __future__ import annotations

import json
from collections.abc import Iterable
from itertools import chain
from pathlib import Path
from typing import Any

from torch import nn

HEAD = '{"model": '


def read_journal(file: Path, model: str, name: str) -> list[dict[str, Any]]:
    """The lines of an earlier call behind the head. A half-written last line, left by a stop, is dropped from the file.

    Args:
        model: what the head has to say: the weights, and whatever else the lines depend on.
        name: the argument's name, for errors.
    Raises:
        ValueError: the file belongs to something else or holds something else.
    """
    if not file.exists():
        return []
    text = file.read_text()
    whole = text[: text.rfind("\n") + 1]
    try:
        if not text.startswith(HEAD[: len(text)]):
            raise TypeError(f"it begins with {text[: len(HEAD)]!r}")
        head, *lines = [json.loads(line) for line in whole.splitlines()] or [None]
        if head is not None and head["model"] != model:
            raise ValueError(f"{name} {str(file)!r} must belong to this model ({model}), got {head['model']}")
    except (json.JSONDecodeError, KeyError, TypeError) as error:
        raise ValueError(f"{name} {str(file)!r} must hold records of this command: {error}") from None
    if len(whole) < len(text):
        file.write_text(whole)
    return lines


def append_journal(file: Path, model: str, lines: Iterable[dict[str, Any]]) -> None:
    """Add lines, and the head where the file is new; they are on the disk when this returns."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("a") as out:
        if out.tell() == 0:
            out.write(json.dumps({"model": model}) + "\n")
        out.writelines(json.dumps(line) + "\n" for line in lines)


def weights_signature(modules: Iterable[nn.Module]) -> str:
    """A few figures that change with any training: parameters, and the sum and the norm of the weights."""
    total = square = 0.0
    count = 0
    for p in chain.from_iterable(module.parameters() for module in modules):
        values = p.detach().double()
        count, total, square = count + p.numel(), total + float(values.sum()), square + float(values.square().sum())
    return f"{count} parameters, sum {total:.6f}, norm {square**0.5:.6f}"
