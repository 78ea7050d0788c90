"""Built-in tools: they work in the folder of the turn's workspace, and nowhere else."""

from __future__ import annotations

from .files import FilesTool
from .shell import ShellTool

__all__ = ["FilesTool", "ShellTool"]
