"""Jobs at servers that run already: the same books and the same exactly-once, whatever the server takes."""

from __future__ import annotations

import contextlib
import json
import threading
import time

import pytest
import zstandard

from derivedata.errors import UserError
from derivedata.pipelines.difficulty_run import measure_difficulty
from derivedata.pipelines.forecast import forecast_paraphrase
from derivedata.pipelines.run import paraphrase_corpus
from derivedata.pipelines.verify import verify_corpus
from derivedata.store.manifest import Manifest
from derivedata.store.paths import Folder
from derivedata.store.runs import current_run
from tests.fake_answers import answer, write_problems
from tests.fake_endpoints import Hosted, LlamaCpp, Silent
from tests.fake_server import FakeServer
from tests.pipelines.fakes import MODEL, job
from tests.pipelines.measuring import measurement

KEY = "my-own-key-0123456789"


@pytest.fixture(autouse=True)
def key(monkeypatch):
    monkeypatch.setenv("DERIVEDATA_API_KEY", KEY)


def at(corpus, output, tokenizer, *servers, **options):
    urls = tuple(server.endpoint.url for server in servers)
    return job(corpus, output, MODEL, endpoints=urls, tokenizer=str(tokenizer), **options)


class Saying:
    def __init__(self):
        self.lines = []

    def say(self, text):
        self.lines.append(text)

    def track(self, title, look):
        return contextlib.nullcontext()


def test_a_hosted_server_end_to_end(corpus, tiny_model, tmp_path):
    out, said = tmp_path / "out", Saying()
    with Hosted(tokenizer=tiny_model, model=MODEL, api_key=KEY) as server:
        outcome = paraphrase_corpus(at(corpus, out, tiny_model, server), said)
        asked = len(server.asked)
    books = outcome.summary.books["generation"]
    assert books.planned == books.settled == 24 * 4
    assert books.accepted > 40
    assert verify_corpus(str(out)).problems == []
    made = server.asked[-1]
    assert made["messages"][-1]["content"].rstrip().endswith('".')  # asked to begin its answer, since nobody else may
    # What was found is told and recorded; the key is nowhere.
    assert "takes no" in said.lines[0]
    record = current_run(Folder(str(out)))
    assert record.identity["asked_as"] == "chat"
    assert record.identity["model_revision"] == "fake-2026-11-01"
    assert record.config.execution["endpoints_found"][0]["not_sent"]
    holding = [path for path in out.rglob("*") if path.is_file() and KEY.encode() in path.read_bytes()]
    assert holding == [] and KEY not in "\n".join(said.lines)
    # At another address the output is complete as it is.
    with Hosted(tokenizer=tiny_model, model=MODEL, api_key=KEY) as moved:
        paraphrase_corpus(at(corpus, out, tiny_model, moved), said)
    assert said.lines[-1].startswith("nothing is missing")
    assert all(body["max_completion_tokens"] < 65 for body in moved.asked) and asked > 96


def test_what_a_server_was_not_told_is_null_in_the_derivation(corpus, tiny_model, tmp_path):
    with Hosted(tokenizer=tiny_model, model=MODEL) as server:
        paraphrase_corpus(at(corpus, tmp_path / "out", tiny_model, server, styles=("faq",), documents=3))
    shard = next((tmp_path / "out/documents").rglob("*.jsonl.zst"))
    row = json.loads(zstandard.ZstdDecompressor().stream_reader(shard.read_bytes()).read().splitlines()[0])
    params = row["metadata"]["derivedata"]["params"]
    assert params["top_k"] is None and params["temperature"] is not None


def test_usage_that_the_server_does_not_say_is_counted_here(corpus, tiny_model, tmp_path):
    with Silent(tokenizer=tiny_model, model=MODEL) as server:
        outcome = paraphrase_corpus(at(corpus, tmp_path / "out", tiny_model, server, styles=("faq",), documents=4))
    assert outcome.generated > 100
    documents = Manifest(tmp_path / "out").documents()
    assert documents["completion_tokens"].min() > 0 and documents["prompt_tokens"].min() > 0


def test_another_way_to_ask_is_another_output(corpus, tiny_model, tmp_path):
    out = tmp_path / "out"
    with FakeServer(tokenizer=tiny_model, model=MODEL) as vllm, LlamaCpp(tokenizer=tiny_model, model=MODEL) as other:
        paraphrase_corpus(at(corpus, out, tiny_model, vllm, styles=("faq",), documents=3))
        with pytest.raises(UserError, match="asked_as was tokens, is chat"):
            paraphrase_corpus(at(corpus, out, tiny_model, other, styles=("faq",)))


def test_all_styles_of_a_document_go_to_one_server_and_all_servers_are_used(corpus, tiny_model, tmp_path):
    def asked_of(server):
        # The documents a server has seen, by the beginning that their prompts share.
        return {str(body["prompt"][:60]) for body in server.asked if body["max_tokens"] > 12}

    class Spy(LlamaCpp):
        def refuse(self, body):
            return None

    servers = [Spy(tokenizer=tiny_model, model=MODEL, tokens_per_second=4000) for _ in range(3)]
    with servers[0], servers[1], servers[2]:
        paraphrase_corpus(at(corpus, tmp_path / "out", tiny_model, *servers, concurrency=8))
    seen = [asked_of(server) for server in servers]
    assert all(seen)
    assert sum(map(len, seen)) == len(set.union(*seen)) == 24


def test_a_server_that_goes_and_one_that_comes_cost_nothing_but_time(corpus, tiny_model, tmp_path):
    well = FakeServer(tokenizer=tiny_model, model=MODEL, tokens_per_second=1500)
    goes = FakeServer(tokenizer=tiny_model, model=MODEL, tokens_per_second=1500)
    with well, goes:
        options = at(corpus, tmp_path / "out", tiny_model, well, goes, concurrency=4)

        def leave() -> None:
            while sum(goes.answered.values()) < 12:
                time.sleep(0.01)
            goes.behaviour.faults = {"reset": 1.0}

        thread = threading.Thread(target=leave)
        thread.start()
        outcome = paraphrase_corpus(options)
        thread.join()
    books = outcome.summary.books["generation"]
    assert books.planned == books.settled == 24 * 4
    assert not any(reason in books.rejected for reason in ("server_error", "timeout", "bad_response"))
    assert verify_corpus(str(tmp_path / "out")).problems == []
    # Once it was known to be sick it was left alone, but for a look now and then.
    assert sum(goes.received.values()) - sum(goes.answered.values()) < 30


def test_difficulty_at_a_hosted_server_with_problems_as_messages(tiny_model, tmp_path):
    problems = write_problems(tmp_path / "p.jsonl", [0.0, 0.5, 1.0])

    def either(prompt: str, draw: int) -> str:
        return answer(prompt, draw) if "(rate" in prompt else "Red, Elbe, 7."

    with Hosted(tokenizer=tiny_model, model=MODEL, api_key=KEY, reply=either) as server:
        options = measurement(
            problems, tmp_path / "out", MODEL, endpoints=(server.endpoint.url,), tokenizer=str(tiny_model)
        )
        measured = measure_difficulty(options)
    assert measured.scored.height == 3
    rollouts = [body for body in server.asked if body["max_completion_tokens"] == 64 and "seed" in body]
    assert len(rollouts) >= 3 * 16


def test_a_dry_run_asks_a_few_words_and_writes_nothing(corpus, tiny_model, tmp_path):
    said = []
    with LlamaCpp(tokenizer=tiny_model, model=MODEL) as server:
        forecast = forecast_paraphrase(at(corpus, tmp_path / "out", tiny_model, server), say=said.append)
    assert forecast.requests == 96 and forecast.prompt_tokens > 0
    assert "chat messages" in said[0]
    assert not (tmp_path / "out").exists()


def test_a_context_shorter_than_a_sentence_and_one_the_server_has_not(corpus, tiny_model, tmp_path):
    with FakeServer(tokenizer=tiny_model, model=MODEL, context=300) as server:
        with pytest.raises(UserError, match="leaves 0 of 300 tokens for a document"):
            paraphrase_corpus(at(corpus, tmp_path / "out", tiny_model, server))
        with pytest.raises(UserError, match="the server takes 300 tokens of prompt and answer"):
            paraphrase_corpus(at(corpus, tmp_path / "out", tiny_model, server, context=4096))
    assert not (tmp_path / "out/run.json").exists()


def test_a_server_whose_context_nobody_knew_ends_the_run_in_one_line(corpus, tiny_model, tmp_path):
    words = "refused each of the first 32 requests: HTTP 400: This model's maximum"
    with LlamaCpp(tokenizer=tiny_model, model=MODEL, context=200) as server, pytest.raises(UserError, match=words):
        paraphrase_corpus(at(corpus, tmp_path / "out", tiny_model, server))


def test_options_of_a_server_that_is_started_have_no_place_beside_one_that_runs(corpus, tmp_path):
    with pytest.raises(UserError, match="is for a server that is started here"):
        job(corpus, tmp_path / "out", MODEL, endpoints=("http://host:1",), max_num_seqs=8)
    with pytest.raises(UserError, match="Add --endpoint"):
        job(corpus, tmp_path / "out", MODEL, concurrency=8)
