"""One small paraphrased output, made once with the fake server, of which tests take copies."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from derivedata.pipelines.run import paraphrase_corpus
from tests.fake_server import FakeServer
from tests.pipelines.fakes import MODEL, job, serve_at
from tests.pipelines.test_source import write_corpus


@pytest.fixture(scope="session")
def made(tiny_model, tmp_path_factory) -> Iterator[Path]:
    """A folder with `in`, 24 documents in 2 shards, and `out`, its faq and table rewrites in several chunks."""
    folder = tmp_path_factory.mktemp("made")
    corpus = write_corpus(folder / "in", shards=2, documents=12)
    before = os.environ.get("DERIVEDATA_CACHE")
    os.environ["DERIVEDATA_CACHE"] = str(folder / "cache")
    try:
        with FakeServer(tokenizer=tiny_model, model=MODEL) as server:
            options = job(corpus, folder / "out", tiny_model, styles=("faq", "table"))
            paraphrase_corpus(options, serve=serve_at(server.endpoint.url))
    finally:
        if before is None:
            del os.environ["DERIVEDATA_CACHE"]
        else:
            os.environ["DERIVEDATA_CACHE"] = before
    yield folder


@pytest.fixture
def out(made, tmp_path) -> Path:
    """A copy of that output; its source stays where it was."""
    return Path(shutil.copytree(made / "out", tmp_path / "out"))
