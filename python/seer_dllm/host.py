"""Where the host waits for the device: every read of the denoising loop goes through here and is counted."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor


class HostRead:
    """Tensors of one device on their way to the host.

    On CUDA the copies to pinned memory queue up behind what the device does now, and it goes on with whatever is
    launched before `wait`. On the CPU the tensors are there already.
    """

    waits: ClassVar[int] = 0  # of this process, on the CPU as well: as many as a device would be waited for

    def __init__(self, *tensors: Tensor) -> None:
        self._tensors, self._copied = tensors, None
        if tensors and tensors[0].device.type != "cpu":
            pinned = [torch.empty_like(t, device="cpu", pin_memory=True) for t in tensors]
            self._tensors = tuple(to.copy_(t, non_blocking=True) for to, t in zip(pinned, tensors, strict=True))
            self._copied = torch.cuda.Event()
            self._copied.record()

    def arrived(self) -> tuple[Tensor, ...]:
        """The tensors, once a later read has been waited for: copies arrive in order."""
        return self._tensors

    def wait(self) -> tuple[Tensor, ...]:
        """The tensors on the host."""
        HostRead.waits += 1
        if self._copied is not None:
            self._copied.synchronize()
        return self._tensors
