"""What holds for every test: the plugins, and the deselection of tests that need a model."""

from __future__ import annotations

import os

import pytest

pytest_plugins = ["pytester", "tests.spec_plugin"]

LOCAL_MODEL_VARIABLE = "FIBERSCOPE_LOCAL_MODEL"


# Last, so that `-m local_model` without the variable reports the tests as deselected, not run.
@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out tests marked `local_model` unless FIBERSCOPE_LOCAL_MODEL is 1."""
    if os.environ.get(LOCAL_MODEL_VARIABLE) == "1":
        return
    needing = [item for item in items if item.get_closest_marker("local_model")]
    if needing:
        items[:] = [item for item in items if item not in set(needing)]
        config.hook.pytest_deselected(items=needing)
