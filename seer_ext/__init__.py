"""Seer's ops: importing this registers `torch.ops.seer`; `seer_ext.ops` has the documented functions."""

from seer_ext import _loader
from seer_ext._version import __version__

if not _loader.reporting():
    plan_keep = _loader.load().plan_keep
    from seer_ext import fake, ops

__all__ = ["__version__", "fake", "ops", "plan_keep"]
