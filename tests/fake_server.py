"""A fake vLLM server over real HTTP: same answers for the same prompt and seed, a modelled speed, faults on demand.

    python -m tests.fake_server --port 0 --tokenizer FOLDER --fault 500=0.1     prints its port, serves until killed

In a test: `with FakeServer(tokenizer=folder) as server: ... server.endpoint` runs it in a thread of the test. The flags
of vLLM's own server that it doesn't know are ignored, so it can stand in for it under the supervisor.

Faults, as `kind=probability` of each attempt or with `fail_first=n` for certain on the first n attempts of a request:
429 (Retry-After: 0), 500, 503, garbage (HTML), half (the body breaks off), reset (closed with no answer), hang (never
an answer), empty (no choices), two (choices, where one was asked for), abort (finish_reason abort), model (another
model's name), slow (one second more), trickle (the body comes in drops, three seconds long), missing (a completion
without text).
"""

from __future__ import annotations

import argparse
import asyncio
import collections
import contextlib
import hashlib
import json
import os
import random
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import tokenizers
from aiohttp import ClientSession, web

from derivedata.generation.request import Endpoint
from tests.fake_text import reply

FAULTS = (
    *("429", "500", "503", "garbage", "half", "reset", "hang", "empty", "two"),
    *("abort", "model", "slow", "trickle", "missing"),
)
_BLOCK = 16  # tokens a prefix-cache block


@dataclass(kw_only=True)
class Behaviour:
    """How the server behaves; may be changed while it runs."""

    model: str = "fake"
    api_key: str | None = None
    tokenizer: Path | str | None = None  # model folder; without one, prompts are read as text only in chat form
    context: int = 8192  # tokens of prompt and generation together
    max_num_seqs: int = 32  # requests that run at once, the others wait
    tokens_per_second: float = 0.0  # of one sequence; 0 answers at once
    faults: dict[str, float] = field(default_factory=dict)  # kind -> probability
    fail_first: int = 0  # the first n attempts of every request get a fault of `faults`, then none
    die_after: int = 0  # the process ends after so many good completions; 0: it does not
    reply: Callable[[str, int], str] = reply  # the answer to a prompt, drawn with a number of the request's own

    def __post_init__(self) -> None:
        unknown = set(self.faults) - set(FAULTS)
        if unknown:
            raise ValueError(f"unknown faults: {sorted(unknown)}")


class FakeServer:
    """The server in a thread of its own; a context manager.

    Attributes:
        received: attempts by request identity (`identity`).
        answered: good completions by request identity.
        order: identities in the order of their first arrival.
        most_running: the most requests that ran at once.
    """

    def __init__(
        self, behaviour: Behaviour | None = None, *, host: str = "127.0.0.1", port: int = 0, tls=None, **settings
    ):
        self.behaviour = behaviour or Behaviour(**settings)
        self.host, self.port, self.tls = host, port, tls  # tls: an SSLContext, for https
        self.received: collections.Counter[str] = collections.Counter()
        self.answered: collections.Counter[str] = collections.Counter()
        self.order: list[str] = []
        self.running = self.waiting = self.most_running = 0
        self.totals: collections.Counter[str] = collections.Counter()
        self._blocks: set[bytes] = set()
        folder = self.behaviour.tokenizer
        self._tokenizer = tokenizers.Tokenizer.from_file(str(Path(folder) / "tokenizer.json")) if folder else None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    @property
    def endpoint(self) -> Endpoint:
        return Endpoint(
            url=f"http://{self.host}:{self.port}", model=self.behaviour.model, api_key=self.behaviour.api_key
        )

    def __enter__(self) -> FakeServer:
        started, failure = threading.Event(), []

        def run() -> None:
            self._loop = asyncio.new_event_loop()
            try:
                runner = self._loop.run_until_complete(self.start())
                started.set()
                self._loop.run_forever()
                self._loop.run_until_complete(runner.cleanup())
            except BaseException as error:
                failure.append(error)
                started.set()

        self._thread = threading.Thread(target=run, daemon=True)
        self._thread.start()
        started.wait()
        if failure:
            raise failure[0]
        return self

    def __exit__(self, *exc: object) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    async def start(self) -> web.AppRunner:
        self._places = asyncio.Semaphore(self.behaviour.max_num_seqs)  # first come, first served
        app = web.Application(client_max_size=1 << 28)
        app.router.add_get("/health", _ok)
        app.router.add_get("/v1/models", self._models)
        app.router.add_post("/v1/completions", self._complete)
        app.router.add_post("/v1/chat/completions", self._complete)
        app.router.add_get("/metrics", self._metrics)
        app.router.add_get("/fake/counts", self._counts)
        app.router.add_post("/fake/behave", self._behave)
        # A hanging request must not keep the server from stopping, and a client that goes away ends its request.
        runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1, access_log=None)
        await runner.setup()
        site = web.TCPSite(runner, self.host, self.port, backlog=1024, ssl_context=self.tls)
        await site.start()
        self.port = site._server.sockets[0].getsockname()[1]
        return runner

    async def _models(self, request: web.Request) -> web.Response:
        if not self._allowed(request):
            return _error(401, "Unauthorized")
        entry = {"id": self.behaviour.model, "object": "model", "max_model_len": self.behaviour.context}
        return web.json_response({"object": "list", "data": [entry]})

    async def _body(self, request: web.Request) -> dict:
        return await request.json()

    async def _complete(self, request: web.Request) -> web.StreamResponse:
        if not self._allowed(request):
            return _error(401, "Unauthorized")
        body = await self._body(request)
        if body.get("model") != self.behaviour.model:
            return _error(404, f"The model `{body.get('model')}` does not exist.")
        chat = "messages" in body
        prompt = body["messages"] if chat else body["prompt"]
        key = identity(prompt, body.get("seed"))
        self.received[key] += 1
        if self.received[key] == 1:
            self.order.append(key)
        fault = self._fault(key)
        refusal = await _refusal(request, fault)
        if refusal is not None:
            return refusal
        text, ids = self._read(prompt)
        if len(ids) >= self.behaviour.context:
            return _error(400, f"This model's maximum context length is {self.behaviour.context} tokens.")
        room = min(body.get("max_tokens") or 16, self.behaviour.context - len(ids))
        said = self.behaviour.reply(text, int(key[:12], 16))
        answer, used, finish = self._cut(said, room, bool(body.get("ignore_eos")))
        cached = await self._run(ids, used, slow=fault == "slow")
        choice = {"index": 0, "finish_reason": "abort" if fault == "abort" else finish, "logprobs": None}
        choice |= {"message": {"role": "assistant", "content": answer}} if chat else {"text": answer}
        if fault == "missing":
            choice |= {"message": {"role": "assistant", "content": None}} if chat else {"text": None}
        document = {
            "id": f"cmpl-{key}",
            "object": "chat.completion" if chat else "text_completion",
            "model": "another-model" if fault == "model" else self.behaviour.model,
            "choices": [choice] * {"empty": 0, "two": 2}.get(fault, 1),
            "usage": {
                "prompt_tokens": len(ids),
                "completion_tokens": used,
                "total_tokens": len(ids) + used,
                "prompt_tokens_details": {"cached_tokens": cached},
            },
        }
        return await self._send(request, key, fault, json.dumps(document).encode())

    async def _run(self, ids: list, new_tokens: int, *, slow: bool) -> int:
        """Wait for a place, then for as long as the generation takes; returns the tokens found in the prefix cache."""
        self.waiting += 1
        try:
            await self._places.acquire()
        finally:
            self.waiting -= 1
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        try:
            cached = self._prefix(ids)
            speed = self.behaviour.tokens_per_second
            await asyncio.sleep((new_tokens / speed if speed else 0.0) + slow)
        finally:
            self.running -= 1
            self._places.release()
        self.totals["generation_tokens"] += new_tokens
        return cached

    async def _send(self, request: web.Request, key: str, fault: str | None, payload: bytes) -> web.StreamResponse:
        if fault == "half":
            response = web.StreamResponse(headers={"Content-Length": str(len(payload))})
            await response.prepare(request)
            await response.write(payload[: len(payload) // 2])
            request.transport.close()
            return response
        if fault == "trickle":
            response = web.StreamResponse(headers={"Content-Length": str(len(payload))})
            await response.prepare(request)
            for start in range(0, len(payload), len(payload) // 30 + 1):
                await response.write(payload[start : start + len(payload) // 30 + 1])
                await asyncio.sleep(0.1)
            return response
        if fault in (None, "slow"):
            self.answered[key] += 1
            if self.answered.total() == self.behaviour.die_after:
                asyncio.get_running_loop().call_later(0.1, os._exit, 1)  # the answers so far have left
        return web.Response(body=payload, content_type="application/json")

    def _read(self, prompt) -> tuple[str, list[int]]:
        if isinstance(prompt, list) and prompt and isinstance(prompt[0], int):
            return (self._tokenizer.decode(prompt, skip_special_tokens=True) if self._tokenizer else ""), prompt
        text = prompt if isinstance(prompt, str) else "\n".join(message["content"] for message in prompt)
        return text, self._tokens(text)

    def _tokens(self, text: str) -> list:
        return self._tokenizer.encode(text, add_special_tokens=False).ids if self._tokenizer else text.split()

    def _cut(self, text: str, room: int, fill: bool) -> tuple[str, int, str]:
        tokens = self._tokens(text)
        while fill and len(tokens) < room:
            tokens = tokens + tokens
        if len(tokens) <= room and not fill:
            return text, max(len(tokens), 1), "stop"
        kept = tokens[:room]
        return (self._tokenizer.decode(kept) if self._tokenizer else " ".join(kept)), len(kept), "length"

    def _prefix(self, ids: list) -> int:
        """Tokens found in the modelled prefix cache, whole blocks, never the last token; the prompt is added to it."""
        hits, digest = 0, hashlib.sha256()
        for number in range(len(ids) // _BLOCK):
            digest.update(repr(ids[number * _BLOCK : (number + 1) * _BLOCK]).encode())
            block = digest.digest()
            hits += block in self._blocks and hits == number and (number + 1) * _BLOCK < len(ids)
            self._blocks.add(block)
        self.totals["prefix_cache_queries"] += len(ids)
        self.totals["prefix_cache_hits"] += hits * _BLOCK
        return hits * _BLOCK

    def _fault(self, key: str) -> str | None:
        faults, attempt = self.behaviour.faults, self.received[key]
        if not faults:
            return None
        draw = random.Random(f"{key} {attempt}")
        if self.behaviour.fail_first:
            return draw.choice(sorted(faults)) if attempt <= self.behaviour.fail_first else None
        number = draw.random()
        for kind in sorted(faults):
            number -= faults[kind]
            if number < 0:
                return kind
        return None

    def _allowed(self, request: web.Request) -> bool:
        key = self.behaviour.api_key
        return key is None or request.headers.get("Authorization") == f"Bearer {key}"

    async def _metrics(self, request: web.Request) -> web.Response:
        labels = f'{{engine="0",model_name="{self.behaviour.model}"}}'
        gauges = {"num_requests_running": self.running, "num_requests_waiting": self.waiting}
        counters = {f"{name}_total": self.totals[name] for name in _COUNTERS}
        lines = [f"vllm:{name}{labels} {float(value)}" for name, value in (gauges | counters).items()]
        return web.Response(text="# HELP vllm:num_requests_running fake\n" + "\n".join(lines) + "\n")

    async def _counts(self, request: web.Request) -> web.Response:
        return web.json_response({"received": self.received, "answered": self.answered, "running": self.running})

    async def _behave(self, request: web.Request) -> web.Response:
        for name, value in (await request.json()).items():
            if name == "exit":  # what a crash of the engine looks like from outside
                os._exit(int(value))
            setattr(self.behaviour, name, value)
        return web.json_response({})


_COUNTERS = ("generation_tokens", "prefix_cache_queries", "prefix_cache_hits")


def identity(prompt: list[int] | list[dict] | str, seed: int | None) -> str:
    """What makes two HTTP requests the same generation: a hash of prompt and seed."""
    return hashlib.sha256(json.dumps([prompt, seed]).encode()).hexdigest()[:24]


async def _ok(request: web.Request) -> web.Response:
    return web.Response()


async def _refusal(request: web.Request, fault: str | None) -> web.StreamResponse | None:
    """The answer of a fault that keeps the request from being generated at all."""
    if fault in ("429", "500", "503"):
        return _error(int(fault), "as told", headers={"Retry-After": "0"} if fault == "429" else None)
    if fault == "garbage":
        return web.Response(text="<html>proxy error</html>")
    if fault == "reset":
        request.transport.abort()
        return web.Response()
    if fault == "hang":
        await asyncio.sleep(3600)
    return None


def _error(status: int, message: str, headers: dict | None = None) -> web.Response:
    document = {"error": {"message": message, "type": "Error", "code": status}}
    return web.json_response(document, status=status, headers=headers)


@contextlib.contextmanager
def fake_server_process(*arguments: str) -> Iterator[str]:
    """The fake server as a process of its own: gives its url, ends it afterwards."""
    command = [sys.executable, "-m", "tests.fake_server", "--port", "0", *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[1]) as process:
        try:
            yield f"http://127.0.0.1:{int(process.stdout.readline())}"
        finally:
            process.kill()


async def counts(url: str) -> dict:
    """`received` and `answered` of a server in another process, by request identity."""
    async with ClientSession() as session, session.get(f"{url}/fake/counts") as response:
        return await response.json()


def main(arguments: list[str] | None = None, reply: Callable[[str, int], str] = reply) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], allow_abbrev=False)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--served-model-name", default="fake")
    parser.add_argument("--tokenizer", help="model folder to read prompts with (default: --model, if it is a folder)")
    parser.add_argument("--model", help="model folder, as vLLM is given it")
    parser.add_argument("--max-model-len", type=int, default=8192)
    parser.add_argument("--max-num-seqs", type=int, default=32)
    parser.add_argument("--tokens-per-second", type=float, default=0.0)
    parser.add_argument("--fault", action="append", default=[], metavar="KIND=PROBABILITY")
    parser.add_argument("--fail-first", type=int, default=0)
    parser.add_argument("--start-seconds", type=float, default=0.0, help="wait so long before listening")
    parser.add_argument("--die-after", type=int, default=0, help="good completions after which the process ends")
    options, _ = parser.parse_known_args(arguments)
    behaviour = Behaviour(
        model=options.served_model_name,
        api_key=os.environ.get("VLLM_API_KEY") or None,
        tokenizer=options.tokenizer or options.model,
        context=options.max_model_len,
        max_num_seqs=options.max_num_seqs,
        tokens_per_second=options.tokens_per_second,
        faults={kind: float(share) for kind, share in (fault.split("=") for fault in options.fault)},
        fail_first=options.fail_first,
        die_after=options.die_after,
        reply=reply,
    )

    async def serve() -> None:
        await asyncio.sleep(options.start_seconds)
        server = FakeServer(behaviour, host=options.host, port=options.port)
        await server.start()
        print(server.port, flush=True)
        await asyncio.Event().wait()

    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(serve())


if __name__ == "__main__":
    main()
