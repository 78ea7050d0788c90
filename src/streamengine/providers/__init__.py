"""Providers: the protocol, and those that need no account."""

from __future__ import annotations

from .base import Provider

__all__ = ["Provider"]
