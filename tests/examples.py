"""How many examples a property is tried on: few in the test suite, 20,000 at night (`just nightly`)."""

from __future__ import annotations

import os

NIGHTLY = "DERIVEDATA_NIGHTLY"
MANY = 20_000


def examples(usual: int) -> int:
    """`usual`, or many where the environment asks for them."""
    return MANY if os.environ.get(NIGHTLY) else usual
