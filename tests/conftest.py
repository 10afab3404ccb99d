"""Fixtures shared by all tests."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def reference_data() -> Path:
    """Real and broken inputs, in the folder beside the checkout (or where DERIVEDATA_REFERENCE_DATA points)."""
    named = os.environ.get("DERIVEDATA_REFERENCE_DATA")
    folder = Path(named) if named else Path(__file__).resolve().parents[2] / "shared" / "data"
    if not folder.is_dir():
        pytest.skip(f"the reference data is not at {folder} (set DERIVEDATA_REFERENCE_DATA)")
    return folder
