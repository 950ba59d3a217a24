"""Every op's benchmark, each in a process of its own; other arguments go to all of them.

python bench/run_all.py --out results/ [--device cuda] [--threads 2] [--repeats 30]
"""

import argparse
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "tests"))

from cases import OPS  # noqa: E402


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="folder for one .json and one .csv per op")
    args, rest = parser.parse_known_args()
    if args.out:
        args.out.mkdir(parents=True, exist_ok=True)
    for op in OPS:
        results = [f"--{kind}={args.out / op}.{kind}" for kind in ("json", "csv")] if args.out else []
        subprocess.run([sys.executable, str(HERE / f"bench_{op}.py"), *rest, *results], check=True)
        print()


if __name__ == "__main__":
    main()
