"""What each CUDA kernel can reach on an H200 at best: from the bytes it moves and its machine code, without a GPU.

    python bench/roofline.py [--out bench/results/cuda_roofline.md]

Needs nvcc and cuobjdump. A kernel can't be faster than its bytes allow at the memory's bandwidth, nor than the
instructions of its inner loop at the rate at which an SM issues them, nor than those in double precision at theirs.
The longest of the three times is the bound; the share is the part of the bandwidth that it leaves. Peak rates are
NVIDIA's for the H200 SXM and compute capability 9.0 (CUDA C++ programming guide, arithmetic instructions).
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from sass import build, listing  # noqa: E402

SMS, CLOCK, BANDWIDTH = 132, 1.98e9, 4.8e12  # of an H200
ISSUED = SMS * CLOCK * 4 * 32  # instructions of threads per second
DOUBLES = SMS * CLOCK * 64  # of those, in double precision
DOUBLE_OPCODES = ("DADD", "DMUL", "DFMA", "DSETP")
WIDE = "LDG.128"
THREADS = 256
# Per SM: registers, warps, blocks, bytes of shared memory of which each block takes 1 KiB more than it asks for (the
# programming guide's table of technical specifications). Registers are given out in 256 per warp.
REGISTERS, WARPS, BLOCKS, RESERVED = 65536, 64, 32, 1024
SHARED = {"sm_80": 164 << 10, "sm_90": 228 << 10}
LATENCY = 700e-9  # of DRAM, under load: our assumption


@dataclass(frozen=True)
class Work:
    """kernel: its name in the listing. size: of the call. must, moves: bytes. loads: of 16 bytes in flight per thread.
    The main loop is the inner one with the most instructions of `marker`, and a turn of it does `each` of the call's
    `elements` per instruction of `counted`; where there is no marker, it isn't straight code."""

    op: str
    kernel: str
    size: str
    must: float
    moves: float
    loads: int
    why: str
    elements: float = 0
    marker: str | None = None
    counted: str = WIDE
    each: float = 8


def works() -> list[Work]:
    R, I, N, V = 1024, 12288, 128, 126464  # noqa: E741
    B, L, H, Q = 16, 512, 4096, 1024
    act, logits, mask, kept = R * I, N * V, B * Q * Q, B * L // 2
    return [
        Work(
            "silu_mul_sparsity",
            "silu_mul_sparsity_kernel<BFloat16, 8, 8>",
            f"[{R}, {I}] bf16",
            6 * act + 4 * R,
            6 * act + 4 * R,
            2,
            "an exponential and a division per element in IEEE steps, none fused: issuing takes longer than memory",
            act,
            WIDE,
            each=4,  # of gate and of up
        ),
        Work(
            "mlp_sparsity",
            "mlp_sparsity_kernel<BFloat16, 8, 8>",
            f"[{R}, {I}] bf16",
            2 * act + 4 * R,
            2 * act + 4 * R,
            4,
            "one pass, a comparison and an addition per element",
            act,
            WIDE,
        ),
        *(
            Work(
                "mask_rewrite",
                kernel,
                f"[{B}, 1, {Q}, {Q}] {dtype}, ranges of half the columns",
                width * mask,
                2 * width * mask,
                1,
                "reads and writes all, where reading inside the range and writing outside would do; one load in flight "
                "per thread; entries of a vector are tested one by one",
                mask,
                WIDE,
                each=16 / width,
            )
            for kernel, dtype, width in (
                ("mask_rewrite_kernel<AdditiveMask<BFloat16>, 8, 1>", "bf16", 2),
                ("mask_rewrite_kernel<BooleanMask, 16, 1>", "bool", 1),
            )
        ),
        *(
            Work(op, f"{op}_kernel<Unit16>", f"{B} rows of {L}, half kept, H {H} bf16", moved, moved, 4, why)
            for op, moved, why in (
                ("varlen_repack", 4 * kept * H, "a copy; sources are found once per token"),
                ("truncate_repack", 4 * kept * H + 24 * kept, "a copy; each block adds up the lengths for itself"),
                ("varlen_unpack", 2 * (kept + B * L) * H, "a copy that writes twice what it reads"),
            )
        ),
        *(
            Work(
                "token_confidence",
                f"token_confidence_kernel<{name}, {16 // width}, false>",
                f"[{N}, {V}] {dtype}",
                width * logits + 16 * N,
                width * logits + 16 * N + 2 * 56 * 8 * N,
                2 * width,
                "an exponential in double precision per logit, which keeps the order of near-certain slots; 8 parts "
                "per row are merged",
                logits,
                "DADD",
                "LDS",
                1,
            )
            for name, dtype, width in (("BFloat16", "bf16", 2), ("float", "fp32", 4))
        ),
    ]


def blocks_per_sm(kernel: listing.Kernel, architecture: str) -> int:
    per_thread = -(-kernel.registers // 8) * 8
    shared = kernel.shared + (RESERVED if architecture == "sm_80" else 0)  # listed from sm_90 on
    by_shared = SHARED[architecture] // shared if shared else BLOCKS
    return min(REGISTERS // (per_thread * THREADS), WARPS * 32 // THREADS, BLOCKS, by_shared)


def count(loop: list[listing.Instruction], name: str) -> int:
    """Instructions of an opcode, or of WIDE."""
    return sum(i.opcode == "LDG" and i.bits == 128 if name == WIDE else i.opcode == name for i in loop)


def turn(work: Work, kernel: listing.Kernel) -> tuple[list[listing.Instruction], float]:
    """The main loop, and how many elements one turn of it does."""
    loop = max(kernel.inner_loops, key=lambda loop: count(loop, work.marker))
    return loop, work.each * count(loop, work.counted)


def row(work: Work, kernels: dict[str, dict[str, listing.Kernel]]) -> str:
    kernel = kernels["sm_90"][work.kernel]
    times = {"memory": work.moves / BANDWIDTH}
    per_item = "-"
    if work.marker is not None:
        loop, elements = turn(work, kernel)
        doubles = sum(count(loop, opcode) for opcode in DOUBLE_OPCODES) / elements
        per_item = f"{len(loop) / elements:.0f}" + (f", {doubles:.0f} double" if doubles else "")
        times["instructions"] = work.elements * len(loop) / elements / ISSUED
        times["double precision"] = work.elements * doubles / DOUBLES
    bound = max(times, key=times.__getitem__)
    occupancy = [
        f"{blocks_per_sm(kernels[a][work.kernel], a) * THREADS // 32 * 100 // WARPS} %" for a in ("sm_80", "sm_90")
    ]
    in_flight = blocks_per_sm(kernel, "sm_90") * THREADS * 16 * work.loads / 1024
    cells = (
        f"`{work.kernel}`",
        work.size,
        f"{work.must / 1e6:.1f}",
        f"{work.moves / 1e6:.1f}",
        per_item,
        kernel.registers,
        kernel.shared,
        *occupancy,
        f"{in_flight:.0f}",
        f"{times[bound] * 1e6:.1f}",
        bound,
        f"{100 * times['memory'] / times[bound]:.0f} %",
        "not measured",
    )
    return "| " + " | ".join(map(str, cells)) + " |"


HEAD = (
    "kernel | call | MB it must move | MB it moves | instructions per element | registers | shared, bytes | "
    "occupancy sm_80 | sm_90 | KiB in flight per SM | us at best | bound by | share of the bandwidth at best | measured"
)


def report() -> str:
    chosen = works()
    kernels: dict[str, dict[str, listing.Kernel]] = {}
    for file in build.objects():
        for architecture in SHARED:
            found = kernels.setdefault(architecture, {})
            found |= {kernel.name: kernel for kernel in listing.kernels(file, architecture)}
    needed = BANDWIDTH / SMS * LATENCY / 1024
    return "\n".join(
        [
            "Bounds of the CUDA kernels on an H200, by `bench/roofline.py`. No GPU was there: nothing is measured.",
            "",
            f"| {HEAD} |",
            "|" + "---|" * (HEAD.count("|") + 1),
            *(row(work, kernels) for work in chosen),
            "",
            *dict.fromkeys(f"- `{work.op}`: {work.why}." for work in chosen),
            "",
            f"Peak rates: {BANDWIDTH / 1e12:.1f} TB/s, {ISSUED / 1e12:.1f} T instructions/s, {DOUBLES / 1e12:.1f} T "
            f"in double precision, at {CLOCK / 1e9:.2f} GHz on {SMS} SMs. Instructions and double precision are those "
            "of the innermost loop on sm_90, so true times are longer. Copies have no figure: their inner loop is not "
            f"straight code. The full bandwidth takes {needed:.0f} KiB in flight per SM if a load takes "
            f"{LATENCY * 1e9:.0f} ns (our assumption). Occupancy follows from registers, threads and shared memory; "
            "blocks have 256 threads. `snr_boundary`, `commit_tokens` and the merge of `token_confidence` read less "
            "than 2 MB at the sizes of `tests/cases.py`: a launch and a few dependent loads are their time, and "
            "bandwidth says nothing.",
        ]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="also write the report there")
    args = parser.parse_args()
    text = report()
    print(text)
    if args.out:
        args.out.write_text(text + "\n")


if __name__ == "__main__":
    main()
