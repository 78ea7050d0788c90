"""What hatchling asks when it builds a wheel: the compiled twin of fibers goes in where it can.

A wheel with it is of this platform and this Python; one without is pure, and says why. An editable
install stays pure: `make native` compiles in place. See docs/development/native.md.
"""

from __future__ import annotations

import importlib.util
import os
import tempfile
from pathlib import Path
from types import ModuleType
from typing import Any

from hatchling.builders.config import BuilderConfig
from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class CompiledTwin(BuildHookInterface[BuilderConfig]):
    """Adds `fibers/_speed.*.so` to a wheel."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile, before the wheel is written."""
        if version == "editable":
            return
        native = _load(Path(self.root, "tools", "native.py"))
        # Its finalizer removes it, also where the build fails after this.
        self._made = tempfile.TemporaryDirectory(prefix="fiberscope-")
        try:
            if os.environ.get("FIBERS_PURE", "0") != "0":
                raise native.NotCompiledError("FIBERS_PURE is set")
            twin: Path = native.build(Path(self._made.name))
        except native.NotCompiledError as exc:
            self.app.display_warning(f"fiberscope: pure Python, without the compiled twin: {exc}")
            return
        build_data["force_include"][str(twin)] = f"fibers/{twin.name}"
        build_data["pure_python"] = False
        build_data["infer_tag"] = True
        self.app.display_info(f"fiberscope: with the compiled twin, {twin.name}")

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Once the wheel is written."""
        if version != "editable":
            self._made.cleanup()


def _load(path: Path) -> ModuleType:
    """By its path: a build does not run with this directory on its search path."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
