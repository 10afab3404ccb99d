"""A tiny model, a small corpus and a fake server, shared by the tests of the pipelines."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fake_server import FakeServer
from tests.pipelines.fakes import MODEL
from tests.pipelines.test_source import write_corpus
from tests.tiny_model import write_tiny_model


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("model") / "tiny")


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch) -> None:
    """What a fake server measures is nothing to remember."""
    monkeypatch.setenv("DERIVEDATA_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def corpus(tmp_path) -> Path:
    return write_corpus(tmp_path / "in", shards=2, documents=12)


@pytest.fixture
def server(tiny_model) -> Iterator[FakeServer]:
    with FakeServer(tokenizer=tiny_model, model=MODEL) as fake:
        yield fake
