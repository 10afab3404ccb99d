"""Fixtures of the trainers' tests."""

import pytest


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    """Counts of corpora are kept beside the test, not in the user's cache."""
    monkeypatch.setenv("DERIVEDATA_CACHE", str(tmp_path / "cache"))
