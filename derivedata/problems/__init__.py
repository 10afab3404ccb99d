"""RL problems: their layouts, the checking of answers, and pass rates."""

from __future__ import annotations

import importlib

_PUBLIC = {
    "Verdict": "verifier",
    "Verifier": "verifier",
    "verify": "verifier",
    "WorkerLimits": "workers",
}

__all__ = ["Verdict", "Verifier", "WorkerLimits", "verify"]


def __getattr__(name: str):
    if name in _PUBLIC:
        value = getattr(importlib.import_module(f"derivedata.problems.{_PUBLIC[name]}"), name)
        globals()[name] = value
        return value
    raise AttributeError(name)
