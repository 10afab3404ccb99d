"""Fixtures of the generation tests: a model without weights, its tokenizer, and a cache folder of the test's own."""

from __future__ import annotations

from pathlib import Path

import pytest

from derivedata.generation.tokenizer import Tokenizer, load_tokenizer
from tests.tiny_model import write_tiny_model


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("model") / "tiny")


@pytest.fixture(scope="session")
def tokenizer(tiny_model: Path) -> Tokenizer:
    return load_tokenizer(tiny_model)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DERIVEDATA_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"
