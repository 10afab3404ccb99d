"""Paraphrasing between a user's own Datatrove steps; the page's example runs as it stands."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path

import pytest
from datatrove.data import Document

import derivedata
from derivedata.errors import UserError
from derivedata.generation.model import resolve_model
from derivedata.generation.served import announce
from derivedata.pipelines.verify import verify_corpus
from derivedata.store.manifest import Manifest
from tests.pipelines import fakes
from tests.pipelines.fakes import MODEL, serve_at
from tests.pipelines.test_source import source_text, write_corpus

PAGE = Path(__file__).parents[2] / "pipelines" / "paraphrase.md"


def documents(count: int, rank: int = 0) -> list[Document]:
    return [
        Document(text=source_text(rank, n), id=f"d{n}", metadata={"source": "town", "page": n}) for n in range(count)
    ]


@pytest.fixture
def step(server, tiny_model, tmp_path):
    def make(**options):
        settings = {"model": str(tiny_model), "styles": ("faq", "table"), "serve": serve_at(server.endpoint.url)}
        return derivedata.Paraphrase(str(tmp_path / "out"), **settings | options)

    return make


def test_documents_go_in_and_derived_documents_come_out(step, server, tmp_path):
    made = list(step().run(iter(documents(6)), 0, 1))
    assert Counter(one.metadata["derivedata"]["style"] for one in made) == {"faq": 6, "table": 6}
    assert {one.metadata["derivedata"]["source_id"] for one in made} == {f"d{n}" for n in range(6)}
    assert {one.metadata["source"] for one in made} == {"town/derived/faq", "town/derived/table"}
    assert verify_corpus(str(tmp_path / "out/derived/00000")).problems == []
    # Again: the same documents, and nothing is asked.
    asked = sum(server.received.values())
    again = list(step().run(iter(documents(6)), 0, 1))
    assert [(one.id, one.text) for one in again] == [(one.id, one.text) for one in made]
    assert sum(server.received.values()) == asked


def test_a_step_that_was_stopped_goes_on_from_its_journal(step, server, tmp_path, monkeypatch):
    server.behaviour.tokens_per_second = 2000

    def stopping(planned):
        if sum(server.answered.values()) > 4:
            raise RuntimeError("stop")
        return True

    named = step(filter="tests.pipelines.fakes:stopping")
    monkeypatch.setattr(fakes, "stopping", stopping, raising=False)
    with pytest.raises(UserError, match="the filter failed"):
        list(named.run(iter(documents(8)), 0, 1))
    monkeypatch.setattr(fakes, "stopping", lambda planned: True)
    assert list(named.run(iter(documents(8)), 0, 1))
    # What was finished before is not asked again; what was in flight may be.
    assert sum(count > 1 for count in server.received.values()) < 16
    assert Manifest(tmp_path / "out/derived/00000").books()["generation"].planned == 16


def test_other_documents_and_another_number_of_tasks_are_refused(step):
    list(step().run(iter(documents(3)), 0, 1))
    with pytest.raises(UserError, match="other documents have reached this task"):
        list(step().run(iter(documents(3)[::-1]), 0, 1))
    with pytest.raises(UserError, match="made by 1 tasks"):
        list(step().run(iter(documents(3)), 0, 2))


def test_a_task_that_nothing_reaches_yields_nothing(step):
    assert list(step().run(iter(()), 1, 2)) == []


def test_wrong_options_show_before_any_task_runs(step):
    with pytest.raises(UserError, match="must be 1 or more"):
        step(rewrites=0)
    with pytest.raises(UserError, match="settled by the pipeline"):
        step(tasks=3)


def test_the_example_of_the_page(server, tiny_model, tmp_path, monkeypatch):
    write_corpus(tmp_path / "corpus", shards=2, documents=4)
    monkeypatch.chdir(tmp_path)
    (code,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    # What `derivedata serve` would leave for it.
    model = resolve_model(str(tiny_model))
    server.behaviour.model = model.name
    announce(server.endpoint, model, context=4096, window=16)
    exec(compile(code, str(PAGE), "exec"), {})
    kept = [json.loads(line) for path in (tmp_path / "kept").glob("*.jsonl") for line in path.read_text().splitlines()]
    assert len(kept) == 2 * 4 * 2
    assert {row["metadata"]["derivedata"]["style"] for row in kept} == {"faq", "table"}
    assert MODEL not in {row["metadata"]["derivedata"]["model"] for row in kept}
