"""What compiled kernels consist of, as cuobjdump lists it: resources and instructions, per kernel and architecture."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import sys
from bisect import bisect_left
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path

from sass.build import BuildError, nvcc, run

_FUNCTION = re.compile(r"^\s+Function : (\S+)$", re.MULTILINE)
_INSTRUCTION = re.compile(r"^\s+/\*([0-9a-f]{4,})\*/\s+(?:@!?U?P\w+\s+)?([A-Z]\w*)((?:\.\w+)*)(.*?);", re.MULTILINE)
_BRANCHES = {"BRA", "JMP"}


@dataclass(frozen=True, slots=True)
class Instruction:
    """LDG.E.128 has the opcode LDG and the modifiers .E.128. target: the address that a branch names."""

    address: int
    opcode: str
    modifiers: str
    target: int | None

    @classmethod
    def parse(cls, address: str, opcode: str, modifiers: str, operands: str) -> Instruction:
        target = re.search(r"0x([0-9a-f]+)\s*$", operands) if opcode in _BRANCHES else None
        return cls(int(address, 16), sys.intern(opcode), sys.intern(modifiers), int(target[1], 16) if target else None)

    @property
    def bits(self) -> int:
        """Width of a memory access, per thread."""
        found = re.search(r"\.[US]?(8|16|64|128|256)\b", self.modifiers)
        return int(found[1]) if found else 32

    @property
    def is_global(self) -> bool:
        return self.opcode in ("LDG", "STG")


@dataclass
class Kernel:
    """name: demangled, without namespaces and arguments, say `mlp_sparsity_kernel<float, 4, 8>`. registers: per
    thread. stack: bytes per thread. shared: bytes per block, from sm_90 on with the KiB that the system reserves."""

    name: str
    registers: int
    stack: int
    shared: int
    instructions: list[Instruction] = field(default_factory=list)

    def count(self, *opcodes: str) -> int:
        return sum(i.opcode in opcodes for i in self.instructions)

    @property
    def size(self) -> int:
        """Instructions, without the padding behind the last."""
        return len(self.instructions) - self.count("NOP")

    def accesses(self, opcode: str) -> list[int]:
        """Bits of each access of global memory by `opcode`, LDG or STG."""
        return [i.bits for i in self.instructions if i.opcode == opcode]

    @cached_property
    def inner_loops(self) -> list[list[Instruction]]:
        """From the target of each branch backwards to the branch, if no other such range lies inside."""
        ranges = {(i.target, i.address) for i in self.instructions if i.target is not None and i.target < i.address}
        inner = [
            (begin, end)
            for begin, end in sorted(ranges)
            if not any((b, e) != (begin, end) and begin <= b and e <= end for b, e in ranges)
        ]
        addresses = [i.address for i in self.instructions]
        return [
            self.instructions[bisect_left(addresses, begin) : bisect_left(addresses, end) + 1] for begin, end in inner
        ]


@cache
def tool(name: str) -> str:
    """A program of the toolkit, or of its pip package (nvidia-cuda-<name>)."""
    spec = importlib.util.find_spec("nvidia")
    roots = spec.submodule_search_locations or () if spec else ()
    packaged = [str(path) for root in roots for path in Path(root).glob("*/bin")]
    places = [*packaged, os.environ.get("PATH", ""), str(Path(nvcc()).resolve().parent)]
    found = shutil.which(name, path=os.pathsep.join(places))
    if found is None:
        raise BuildError(f"{name} was not found: run `pip install nvidia-cuda-{name}`")
    return found


def architectures(file: Path) -> list[str]:
    """Those of an object's machine code, as sm_80, then those of its PTX, as compute_120."""
    listed = _cuobjdump("-lelf", "-lptx", str(file))
    code, ptx = (re.findall(rf"\.sm_(\w+)\.{kind}$", listed, re.MULTILINE) for kind in ("cubin", "ptx"))
    return [f"sm_{name}" for name in code] + [f"compute_{name}" for name in ptx]


def kernels(file: Path, architecture: str) -> list[Kernel]:
    """Those of an object for one architecture, by name."""
    usage = _cuobjdump("-arch", architecture, "-res-usage", str(file))
    found = {}
    for mangled, numbers in re.findall(r"Function (\S+):\s+(REG:.*)", usage):
        by_name = {name: int(number) for name, number in re.findall(r"([A-Z]+):(\d+)", numbers)}
        found[mangled] = Kernel(mangled, by_name["REG"], by_name["STACK"], by_name["SHARED"])
    _, *parts = _FUNCTION.split(_cuobjdump("-arch", architecture, "-sass", str(file)))
    for mangled, text in zip(parts[::2], parts[1::2], strict=True):
        found[mangled].instructions += [Instruction.parse(*match) for match in _INSTRUCTION.findall(text)]
    for kernel, name in zip(found.values(), _demangled(list(found)), strict=True):
        kernel.name = name
    return sorted(found.values(), key=lambda kernel: kernel.name)


def _cuobjdump(*arguments: str) -> str:
    path = tool("cuobjdump")
    disassembler = Path(tool("nvdisasm")).parent  # which cuobjdump looks for on the PATH
    return run(path, *arguments, env=os.environ | {"PATH": f"{disassembler}{os.pathsep}{os.environ['PATH']}"})


def _demangled(names: list[str]) -> list[str]:
    full = run("c++filt", *names).splitlines() if names else []
    return [re.sub(r"^void |\(.*\)$|\bseer::(cuda::)?", "", name) for name in full]
