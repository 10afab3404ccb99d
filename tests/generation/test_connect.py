"""Servers of other kinds over real HTTP: what is found out, what is dropped, and what is refused in one line."""

from __future__ import annotations

import contextlib
import json
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from derivedata.errors import UserError
from derivedata.generation.connect import connect, key_for, root, withheld
from derivedata.generation.request import Sampling
from tests.fake_endpoints import Hosted, LlamaCpp, Silent, self_signed
from tests.fake_server import FakeServer
from tests.tiny_model import write_tiny_model

KEY = "sk-test-0123456789abcdefghij"
SAMPLINGS = [Sampling(max_tokens=64, temperature=0.7, top_k=50)]


@pytest.fixture(autouse=True)
def no_key(monkeypatch, cache):
    for name in ("DERIVEDATA_API_KEY", "OPENAI_API_KEY"):
        monkeypatch.delenv(name, raising=False)


def look(*servers, model="fake", tokenizer=None, **options):
    urls = [server if isinstance(server, str) else server.endpoint.url for server in servers]
    return connect(urls, model=model, tokenizer=tokenizer and str(tokenizer), samplings=SAMPLINGS, **options)


def test_a_vllm_server_gets_token_ids_and_every_field(tiny_model):
    with FakeServer(tokenizer=tiny_model, context=2048) as server:
        found = look(server, tokenizer=tiny_model)
    assert (found.form, found.not_sent, found.context) == ("tokens", (), 2048)
    assert found.found[0]["keeps_to_seeds"] is True
    assert found.model.revision is None
    assert "token ids" in found.lines[0]


def test_the_only_model_of_a_server_need_not_be_named(tiny_model):
    with FakeServer(tokenizer=tiny_model) as server:
        assert look(server, model=None, tokenizer=tiny_model).model.name == "fake"


def test_a_model_named_by_its_folder_brings_its_tokenizer(tiny_model):
    with FakeServer(tokenizer=tiny_model, model=str(tiny_model)) as server:
        assert look(server, model=str(tiny_model)).model.path == tiny_model


def test_a_server_without_token_ids_is_asked_with_messages(tiny_model):
    with LlamaCpp(tokenizer=tiny_model) as server:
        found = look(server, tokenizer=tiny_model)
        assert found.form == "chat"
        assert found.not_sent == ()
        # A base model has no template: its prompts are text.
        base = write_tiny_model(tiny_model.parent / "base", chat_template=None)
        assert look(server, tokenizer=base).form == "text"
    assert not any("n" in body for body in server.asked)


def test_a_hosted_server_gets_only_the_fields_it_takes(tiny_model, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    with Hosted(tokenizer=tiny_model, api_key=KEY) as server:
        found = look(server, tokenizer=tiny_model)
    assert found.form == "chat"
    assert found.not_sent == ("min_p", "presence_penalty", "repetition_penalty", "top_k")
    assert found.endpoints[0].dialect.limit == "max_completion_tokens"
    # Its dated name is the revision, and dropping top_k changes what texts are drawn from.
    assert found.model.revision == "fake-2026-11-01"
    assert found.identity["not_sent"] == ["top_k"]
    assert "top_k of the styles has no effect" in found.lines[0]
    assert KEY not in repr(found)


def test_another_tokenizer_than_the_servers_gets_no_token_ids(tiny_model, tmp_path):
    other = write_tiny_model(tmp_path / "other")
    changed = json.loads((other / "tokenizer.json").read_text())
    changed["model"]["merges"] = changed["model"]["merges"][:40]
    (other / "tokenizer.json").write_text(json.dumps(changed))
    with FakeServer(tokenizer=tiny_model) as server:
        found = look(server, tokenizer=other)
    assert found.form == "chat"
    assert "the server reads" in found.found[0]["refuses"]["tokens"]


def test_several_servers_are_spoken_to_as_all_of_them_take_it(tiny_model):
    with FakeServer(tokenizer=tiny_model) as first, LlamaCpp(tokenizer=tiny_model) as second:
        found = look(first, second, tokenizer=tiny_model, in_flight=10)
    assert found.form == "chat"
    assert found.in_flight == 20


def test_a_server_that_is_away_is_left_out_and_said(tiny_model):
    with FakeServer() as away:
        pass
    with FakeServer(tokenizer=tiny_model) as server:
        found = look(server, away, tokenizer=tiny_model)
    assert len(found.endpoints) == 2
    assert "left out for now" in found.lines[1]


def test_what_determines_texts_does_not_depend_on_the_address(tiny_model):
    with FakeServer(tokenizer=tiny_model) as one, FakeServer(tokenizer=tiny_model) as other:
        assert look(one, tokenizer=tiny_model).identity == look(other, tokenizer=tiny_model).identity


def test_usage_that_is_not_said_and_seeds_that_are_not_kept_are_told(tiny_model):
    draws = iter(range(1000))
    with Silent(tokenizer=tiny_model, reply=lambda prompt, draw: f"answer {next(draws)}") as server:
        found = look(server, tokenizer=tiny_model)
    assert "can't be made again" in found.lines[0]
    assert "tokens are counted here" in found.lines[0]


# What is refused.


def test_a_wrong_key_and_a_missing_one(tiny_model, monkeypatch):
    with FakeServer(tokenizer=tiny_model, api_key=KEY) as server:
        with pytest.raises(UserError, match=r"wants an API key.*DERIVEDATA_API_KEY"):
            look(server, tokenizer=tiny_model)
        monkeypatch.setenv("DERIVEDATA_API_KEY", "wrong-key-of-mine")
        with pytest.raises(UserError, match="refused the API key") as told:
            look(server, tokenizer=tiny_model)
    assert "wrong-key-of-mine" not in told.value.line


def test_a_model_that_is_not_served(tiny_model):
    with FakeServer(tokenizer=tiny_model) as server, pytest.raises(UserError, match="no model 'other', but fake"):
        look(server, model="other", tokenizer=tiny_model)


def test_a_tokenizer_that_nobody_knows(tiny_model):
    with FakeServer(tokenizer=tiny_model) as server, pytest.raises(UserError, match="Give --tokenizer"):
        look(server)


def test_nobody_there():
    with FakeServer() as gone:
        pass
    with pytest.raises(UserError, match="cannot connect"):
        look(gone)


@pytest.mark.parametrize("page", [b"<html>welcome</html>", b'{"hello": "world"}'])
def test_another_api_at_that_address(page):
    with other_api(page) as url, pytest.raises(UserError, match="no OpenAI-compatible API answers here"):
        look(url)


def test_a_server_without_a_chat_template_and_without_completions(tiny_model):
    class Neither(Hosted):
        def refuse(self, body):
            return "a chat template must be provided" if "messages" in body else "no completions here"

    with Neither(tokenizer=tiny_model) as server, pytest.raises(UserError, match="answers neither completions nor"):
        look(server, tokenizer=tiny_model)


def test_a_plain_template_needs_completions(tiny_model):
    with Hosted(tokenizer=tiny_model) as server, pytest.raises(UserError, match="takes chat messages only"):
        look(server, tokenizer=tiny_model, plain=True)


def test_a_temperature_that_the_server_refuses(tiny_model):
    class Fixed(LlamaCpp):
        def refuse(self, body):
            wrong = body.get("temperature", 1) != 1
            return "only the default temperature is supported" if wrong else super().refuse(body)

    with Fixed(tokenizer=tiny_model) as server, pytest.raises(UserError, match=r"refuses temperature 0\.7"):
        look(server, tokenizer=tiny_model)


def test_a_certificate_that_nobody_vouches_for(tiny_model, tmp_path, monkeypatch):
    tls, certificate = self_signed(tmp_path)
    with FakeServer(tokenizer=tiny_model, tls=tls) as server:
        url = f"https://localhost:{server.port}"
        with pytest.raises(UserError, match=r"certificate cannot be verified: self.signed.*SSL_CERT_FILE"):
            look(url, tokenizer=tiny_model)
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
        assert look(url, tokenizer=tiny_model).form == "tokens"


@pytest.mark.parametrize(
    ("given", "taken"),
    [
        ("http://host:8000", "http://host:8000"),
        ("http://host:8000/", "http://host:8000"),
        ("https://host/v1/", "https://host"),
        ("https://host/openai/v1/chat/completions", "https://host/openai"),
    ],
)
def test_an_address_may_be_given_in_several_ways(given, taken):
    assert root(given) == taken


@pytest.mark.parametrize("url", ["host:8000", "ftp://host", "http://", "http://host:port", "local"])
def test_what_is_no_address(url):
    with pytest.raises(UserError, match="not the address of a server"):
        root(url)


@pytest.mark.parametrize("url", [f"https://user:{KEY}@host", f"https://host/v1?api_key={KEY}"])
def test_a_key_has_no_place_in_an_address_and_is_not_shown(url):
    with pytest.raises(UserError, match="The key goes into DERIVEDATA_API_KEY") as told:
        root(url)
    assert KEY not in told.value.line


@pytest.mark.parametrize("url", ["https://host", "http://127.0.0.1:8000", "http://[::1]:8000", "http://localhost:8000"])
def test_the_usual_key_goes_where_nobody_reads_it_on_its_way(monkeypatch, url):
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    assert (key_for(url), withheld(url)) == (KEY, None)


@pytest.mark.parametrize(
    "url", ["http://host:8000", "http://10.0.0.1", "http://localhost.example.com", "http://127.1.example"]
)
def test_the_usual_key_is_not_sent_in_the_clear_and_ours_is(monkeypatch, url):
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    assert key_for(url) is None
    assert "set DERIVEDATA_API_KEY" in withheld(url) and KEY not in withheld(url)
    monkeypatch.setenv("DERIVEDATA_API_KEY", "meant-for-it")
    assert (key_for(url), withheld(url)) == ("meant-for-it", None)


def test_a_key_that_is_not_sent_is_told(tiny_model, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.setattr("derivedata.generation.connect._in_the_clear", lambda url: True)
    with FakeServer(tokenizer=tiny_model) as server:
        found = look(server, tokenizer=tiny_model)
    assert found.endpoints[0].api_key is None
    assert "OPENAI_API_KEY is not sent over plain http" in found.lines[-1]


@contextlib.contextmanager
def other_api(page: bytes):
    class Other(BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.end_headers()
            self.wfile.write(page)

        def log_message(self, *args):
            pass

    server = HTTPServer(("127.0.0.1", 0), Other)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
