"""Sizes that captured graphs are made for: few enough to capture, near enough to pad little."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field

from seer_dllm.config import check_positive


@dataclass(frozen=True)
class Buckets:
    """A ladder of sizes: powers of two, then coarser and coarser steps, and always the maximum.

    From `doubling_until` on, four equal steps lead to the next power of two (256, 320, 384, 448, 512, 640, ...), so
    that less than a quarter is added to a size. Below it, padding is cheap where all weights are read whatever the
    size. Both are our defaults. A ladder counts nothing: hits and misses belong to whoever runs the graphs.

    Args:
        maximum: the largest size, power of two or not.
        smallest: the first size, a power of two; a maximum that is no larger is the only size.
        doubling_until: the last size that the next one doubles, a power of two.
    Raises:
        ValueError: an argument is not a positive whole number, or not the power of two it must be.
    """

    maximum: int
    smallest: int = 1
    doubling_until: int = 256
    sizes: tuple[int, ...] = field(init=False)  # ascending

    def __post_init__(self) -> None:
        for name in ("maximum", "smallest", "doubling_until"):
            check_positive(name, getattr(self, name))
        for name in ("smallest", "doubling_until"):
            value = getattr(self, name)
            if value & (value - 1):
                raise ValueError(f"{name} must be a power of two, got {value}")
        sizes, size = [], self.smallest
        while size < self.maximum:
            sizes.append(size)
            power = 1 << (size.bit_length() - 1)
            size += power if size < self.doubling_until else max(1, power // 4)
        object.__setattr__(self, "sizes", (*sizes, self.maximum))

    def bucket_for(self, n: int) -> int | None:
        """The least size that holds `n`; None is a miss: `n` is above the maximum.

        ValueError: `n` is not a positive whole number.
        """
        check_positive("n", n)
        return self.sizes[bisect_left(self.sizes, n)] if n <= self.maximum else None
