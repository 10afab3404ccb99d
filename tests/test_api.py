"""The Python API: one function, silent, with the names of the command's options."""

from __future__ import annotations

import subprocess
import sys

import pytest

import derivedata
from tests.fake_server import FakeServer
from tests.pipelines.test_source import write_corpus
from tests.tiny_model import write_tiny_model


def test_paraphrase_from_python(tmp_path, monkeypatch):
    monkeypatch.setenv("DERIVEDATA_CACHE", str(tmp_path / "cache"))
    tokenizer = write_tiny_model(tmp_path / "tiny")
    corpus = write_corpus(tmp_path / "in", shards=1, documents=4)
    with FakeServer(tokenizer=tokenizer) as server:
        outcome = derivedata.paraphrase(
            str(corpus),
            str(tmp_path / "out"),
            styles=("faq",),
            model="fake",
            endpoints=(server.endpoint.url,),
            tokenizer=str(tokenizer),
        )
    assert outcome.summary.documents == 4
    with pytest.raises(TypeError, match="no_such_option"):
        derivedata.paraphrase("in", "out", no_such_option=1)


def test_importing_the_package_loads_nothing_heavy():
    code = "import sys, derivedata; print(sorted({'numpy', 'datatrove', 'polars', 'torch'} & set(sys.modules)))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert found.strip() == "[]"
    assert "paraphrase" in dir(derivedata)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        derivedata.nothing  # noqa: B018
