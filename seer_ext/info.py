"""What is installed and what works: `python -m seer_ext.info [--json]`.

Versions, instruction sets and architectures of the kernels, and which op runs on which backend. A broken
install is reported, never raised.
"""

from __future__ import annotations

import argparse
import json
import platform
from typing import Any

from seer_ext import _loader
from seer_ext._version import __version__

BACKENDS = ("CPU", "CUDA", "Meta")  # Meta: shapes alone, for tracing


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [""])[0] or type(error).__name__


def _torch_version() -> str | None:
    try:
        import torch

        return str(torch.__version__)
    except Exception as error:
        return None if getattr(error, "name", None) == "torch" else f"broken: {_first_line(error)}"


def _ops() -> dict[str, dict[str, bool]]:
    """`{op: {backend: registered}}`."""
    import torch

    from seer_ext import fake  # noqa: F401  (registers Meta)

    names = sorted(name for name in torch._C._dispatch_get_all_op_names() if name.startswith("seer::"))
    has = torch._C._dispatch_has_kernel_for_dispatch_key
    return {name.removeprefix("seer::"): {key: has(name, key) for key in BACKENDS} for name in names}


def devices() -> tuple[str, ...]:
    """Device types that every op has a kernel for, in this build with this torch."""
    ops = _ops().values()
    return tuple(key.lower() for key in ("CPU", "CUDA") if all(backends[key] for backends in ops))


def collect() -> dict[str, Any]:
    """The report as a dict of plain values. `error` is the reason why the extension doesn't work, or None."""
    report: dict[str, Any] = {
        "seer-ext": __version__,
        "python": platform.python_version(),
        "torch": _torch_version(),
    }
    report |= {"built": None, "extension": None, "cpu_isa": None, "cpu_isas": [], "ops": {}, "error": None}
    try:
        report["built"] = _loader.build_info()
        file = _loader.extension_file()
        report["extension"] = str(file) if file else None
        module = _loader.load()
        report["cpu_isa"], report["cpu_isas"] = module.cpu_isa(), module.cpu_isas()
        report["ops"] = _ops()
    except Exception as error:
        report["error"] = _first_line(error)
    return report


def render(report: dict[str, Any]) -> str:
    built = report["built"] or {}
    available = ", ".join(report["cpu_isas"]) or "none"
    archs, compiler = ", ".join(built.get("cuda_archs", [])), built.get("cuda_compiler", "-")
    fits = f">= {built['torch_target']} (against {built['torch']})" if built else "not built"
    lines = [
        ("seer-ext", report["seer-ext"]),
        ("python", report["python"]),
        ("torch", report["torch"] or "not installed"),
        ("built for torch", fits),
        ("compiler", built.get("compiler", "-")),
        ("extension", report["extension"] or "-"),
        ("CPU kernels", f"{report['cpu_isa'] or 'none'} (available here: {available})"),
        ("CUDA kernels", f"{archs or 'none in this build'} ({compiler})"),
        ("error", report["error"] or "none"),
    ]
    text = [f"{name:16}{value}" for name, value in lines]
    if report["ops"]:
        text += ["", f"{'op':20}" + "".join(f"{key:6}" for key in BACKENDS)]
    for op, backends in report["ops"].items():
        text.append(f"{op:20}" + "".join(f"{'yes' if backends[key] else 'no':6}" for key in BACKENDS))
    return "\n".join(line.rstrip() for line in text)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m seer_ext.info", description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="print JSON")
    arguments = parser.parse_args()
    report = collect()
    print(json.dumps(report, indent=2) if arguments.json else render(report))


if __name__ == "__main__":
    main()
