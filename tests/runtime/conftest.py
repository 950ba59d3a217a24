"""Fixtures of several files here."""

import importlib
import sys
from types import ModuleType, SimpleNamespace
from unittest import mock

import pytest


@pytest.fixture(scope="module")
def lmms():
    """`seer_dllm.lmms` over a stand-in, even where the library is: a base class and a logger are all it takes."""

    class Base:
        rank = 0

        def __init__(self):
            self.task_dict = {}

    def module(name, **contents):
        made = ModuleType(name)
        vars(made).update(contents)
        return made

    registry = module("lmms_eval.models.registry_v2", ModelManifest=SimpleNamespace)
    stand_ins = {
        "lmms_eval": module("lmms_eval"),
        "lmms_eval.api": module("lmms_eval.api"),
        "lmms_eval.api.model": module("lmms_eval.api.model", lmms=Base),
        "lmms_eval.models": module("lmms_eval.models"),
        "lmms_eval.models.registry_v2": registry,
        "loguru": module("loguru", logger=mock.Mock()),
    }
    with pytest.MonkeyPatch.context() as patch:  # which leaves what else is imported meanwhile
        for name, stand_in in stand_ins.items():
            patch.setitem(sys.modules, name, stand_in)
        sys.modules.pop("seer_dllm.lmms", None)
        yield importlib.import_module("seer_dllm.lmms")
    del sys.modules["seer_dllm.lmms"]


@pytest.fixture
def told(lmms):
    """The warnings that were logged so far."""
    lmms._warn_once.cache_clear()
    with mock.patch.object(lmms, "logger") as logger:
        yield lambda: [call.args[0] for call in logger.warning.call_args_list]
