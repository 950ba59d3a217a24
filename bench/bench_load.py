"""Loading against a plain read of the same files: time and peak memory, on a generated checkpoint of true 8B shapes.

    python bench/bench_load.py --layers 4 --folder /a/disk/with/space

The checkpoint is LLaDA-8B's but for the number of layers, sharded as on the hub, and deleted at the end. Every
measurement is a process of its own; "cold" drops the files from the page cache first. Prints a table in Markdown.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
from safetensors.torch import save_file

from seer_dllm import load
from seer_dllm.backbone import Backbone
from seer_dllm.families import find_family

ROLES = ("write", "read", "load")


def hub_config(args: argparse.Namespace) -> dict:
    """LLaDA-8B's config.json as far as it matters here, with the sizes of the command line."""
    return {
        "model_type": "llada", "d_model": args.hidden, "n_heads": args.hidden // 128, "n_layers": args.layers,
        "mlp_hidden_size": args.mlp, "vocab_size": args.vocab, "rope_theta": 500000.0, "rms_norm_eps": 1e-5,
        "mask_token_id": args.vocab - 1, "eos_token_id": args.vocab - 2,
    }  # fmt: skip


def shapes(config: dict) -> dict[str, torch.Size]:
    """Checkpoint name -> shape, in the order of the model."""
    family = find_family(config)
    sizes = family.read_config(config)
    names = family.backbone_names(sizes)
    with torch.device("meta"):
        return {names[ours]: parameter.shape for ours, parameter in Backbone(sizes).named_parameters()}


def write(folder: Path, config: dict, shard_bytes: int) -> None:
    """Write config, shards (bfloat16, each at most `shard_bytes` unless one tensor is larger) and index."""
    shards: list[dict[str, torch.Size]] = [{}]
    room = shard_bytes
    for name, shape in shapes(config).items():
        size = 2 * shape.numel()
        if size > room and shards[-1]:
            shards.append({})
            room = shard_bytes
        shards[-1][name] = shape
        room -= size
    tile = torch.randn(1 << 20).bfloat16()
    where = {}
    for i, shard in enumerate(shards, 1):
        file = folder / f"model-{i:05d}-of-{len(shards):05d}.safetensors"
        tensors = {}
        for name, shape in shard.items():
            tensors[name] = tile.repeat(-(-shape.numel() // len(tile)))[: shape.numel()].reshape(shape)
        save_file(tensors, file, metadata={"format": "pt"})
        with file.open("rb") as stream:
            os.fsync(stream.fileno())  # pages that are not on the disk yet cannot be dropped
        where |= dict.fromkeys(shard, file.name)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": where}))
    (folder / "config.json").write_text(json.dumps(config))


def drop_from_cache(folder: Path) -> None:
    for file in folder.glob("*.safetensors"):
        with file.open("rb") as stream:
            os.posix_fadvise(stream.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def measure(role: str, folder: Path, dtype: str) -> dict[str, float]:
    """Seconds, and MiB of peak memory above what the process had at the start."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    started = time.perf_counter()
    if role == "load":
        load(folder, dtype=dtype)
    else:
        for file in sorted(folder.glob("*.safetensors")):
            file.read_bytes()  # freed at once: the peak of a plain read is its largest file
    seconds = time.perf_counter() - started
    return {"seconds": seconds, "peak": (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024}


def run(role: str, folder: Path) -> str:
    """This script in a fresh process, in another role. Its output.

    The checkpoint is written in one as well: a child's peak memory starts at the peak of the process that starts it.
    """
    command = [sys.executable, *sys.argv, "--role", role, "--folder", str(folder)]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--hidden", type=int, default=4096, help="a multiple of the head size, 128")
    parser.add_argument("--mlp", type=int, default=12288)
    parser.add_argument("--vocab", type=int, default=126464)
    parser.add_argument("--shard-gb", type=float, default=5.0)
    parser.add_argument("--dtype", default="bfloat16", help="of the loaded model; the files are bfloat16")
    parser.add_argument("--repeats", type=int, default=3, help="the table has medians")
    parser.add_argument("--folder", type=Path, help="where the temporary checkpoint goes; default: the system's place")
    parser.add_argument("--role", choices=ROLES, help=argparse.SUPPRESS)
    args = parser.parse_args()
    config = hub_config(args)
    if args.role == "write":
        return write(args.folder, config, int(args.shard_gb * 1e9))
    if args.role:
        return print(json.dumps(measure(args.role, args.folder, args.dtype)))

    size = 2 * sum(shape.numel() for shape in shapes(config).values())
    with tempfile.TemporaryDirectory(dir=args.folder) as temporary:
        folder = Path(temporary)
        free = shutil.disk_usage(folder).free
        if size > 0.9 * free:
            raise SystemExit(f"--folder must have room for {size / 1e9:.1f} GB, got {free / 1e9:.1f} GB free")
        run("write", folder)
        files = len(list(folder.glob("*.safetensors")))
        print(f"{size / 1e9:.2f} GB of bfloat16 in {files} files, {args.layers} layers, loaded as {args.dtype}.\n")
        print("| page cache | | seconds | GB/s | times the read | peak memory / file bytes |")
        print("|---|---|---|---|---|---|")
        for cache in ("cold", "warm"):
            medians = {}
            for role, label in (("read", "plain read"), ("load", "load")):
                results = []
                for _ in range(args.repeats):
                    if cache == "cold":
                        drop_from_cache(folder)
                    results.append(json.loads(run(role, folder)))
                medians[role] = seconds = statistics.median(r["seconds"] for r in results)
                peak = statistics.median(r["peak"] for r in results) * 2**20 / size
                ratio = seconds / medians["read"]
                print(f"| {cache} | {label} | {seconds:.2f} | {size / 1e9 / seconds:.2f} | {ratio:.2f} | {peak:.2f} |")


if __name__ == "__main__":
    main()
