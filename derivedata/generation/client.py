"""Asks a server for completions: a window of requests in flight, deadlines, retries, and a limit to patience."""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable
from email.utils import parsedate_to_datetime

import aiohttp
import orjson

from derivedata.errors import UserError
from derivedata.generation.request import Completion, Endpoint, Failure, Request, Sampling

__all__ = ["Client", "Completion", "Endpoint", "Failure", "Request", "Sampling", "generate"]

# The server is there but busy or not up yet: waiting is the cure, and waiting is bounded by the client's patience.
_BUSY = frozenset({408, 425, 429, 503})
_FINISHED = frozenset({"stop", "length"})
_LONGEST_PAUSE_S = 30.0


class _Retry(Exception):
    """This attempt failed in a way that another may not.

    Args:
        reason: reason of the `Failure` if attempts run out.
        detail: what happened.
        counts: whether it uses up one of the attempts.
        pause: seconds the server asked to wait.
    """

    def __init__(self, reason: str, detail: str, *, counts: bool = True, pause: float | None = None):
        super().__init__(detail)
        self.reason, self.detail, self.counts, self.pause = reason, detail, counts, pause


class Client:
    """Sends requests to one endpoint and comes back with an outcome for each.

    A request that fails in a way that may pass (timeouts, connection errors, 408, 425, 429, 5xx, answers that make no
    sense) is sent again after a growing pause with jitter, or the one in Retry-After. Being refused for being busy
    (408, 425, 429, 503, nobody listening) costs no attempt: only the client's patience bounds it.

    Args:
        endpoint: the server.
        window: requests in flight at most in `generate`.
        deadline_s: seconds one attempt may take.
        attempts: how often one request is tried before it becomes a `Failure`.
        patience_s: seconds in which nothing at all succeeds before `complete` raises a UserError.
        pause_s: the first pause, in seconds; doubled with each further attempt up to 30 s.
        alive: called when a request fails; raises when the server is known to be gone for good.

    Use as an async context manager.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        *,
        window: int = 64,
        deadline_s: float = 900.0,
        attempts: int = 6,
        patience_s: float = 900.0,
        pause_s: float = 0.5,
        alive: Callable[[], None] | None = None,
    ):
        self.endpoint, self.window = endpoint, window
        self.deadline_s, self.attempts, self.patience_s, self.pause_s = deadline_s, attempts, patience_s, pause_s
        self.retries = 0  # attempts that failed and were made again
        self._alive = alive
        self._failing_since: float | None = None
        self._last_success = 0.0
        self._jitter = random.Random()
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Client:
        headers = {"Content-Type": "application/json"}
        if self.endpoint.api_key:
            headers["Authorization"] = f"Bearer {self.endpoint.api_key}"
        self._session = aiohttp.ClientSession(
            # The window bounds the connections. Idle ones are dropped before uvicorn does so after 5 s, which would
            # look like a broken connection to the request that meets it.
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=4),
            timeout=aiohttp.ClientTimeout(total=self.deadline_s),
            headers=headers,
        )
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._session.close()
        self._session = None

    async def complete(self, request: Request) -> Completion | Failure:
        """The outcome of one request.

        Raises:
            UserError: the server refuses the key or doesn't know the model, or nothing succeeded for `patience_s`.
        """
        path, body = _body(request, self.endpoint.model)
        counted = tries = 0
        while True:
            began = time.monotonic()
            try:
                return await self._attempt(path, body)
            except _Retry as failed:
                counted += failed.counts
                tries += 1
                self._note_failure(failed.detail, began)
                if counted >= self.attempts:
                    return Failure(failed.reason, f"{failed.detail} (tried {tries} times)", retryable=True)
                self.retries += 1
                pause = min(self.pause_s * 2 ** min(tries - 1, 10), _LONGEST_PAUSE_S)
                # Never less than the server asked for; the jitter keeps a window of requests from coming back at once.
                await asyncio.sleep((failed.pause or 0.0) + pause * self._jitter.uniform(0.5, 1.0))

    async def _attempt(self, path: str, body: bytes) -> Completion | Failure:
        began = time.monotonic()
        try:
            async with self._session.post(self.endpoint.url + path, data=body) as response:
                payload = await response.read()
        except TimeoutError:
            raise _Retry("timeout", f"no answer within {self.deadline_s:g} s") from None
        except aiohttp.ClientConnectorError as error:
            raise _Retry("server_error", f"cannot connect: {error.os_error or error}", counts=False) from None
        except (aiohttp.ClientError, OSError) as error:
            raise _Retry("server_error", f"connection lost: {error or type(error).__name__}") from None
        if response.status != 200:
            return self._refused(response.status, payload, response.headers.get("Retry-After"))
        completion = _parse(payload, self.endpoint, time.monotonic() - began)
        self._note_success()
        return completion

    def _refused(self, status: int, payload: bytes, retry_after: str | None) -> Failure:
        words = _reason(payload)
        if status in _BUSY:
            raise _Retry("server_error", f"HTTP {status}: {words}", counts=False, pause=_seconds(retry_after))
        if status >= 500 or status == 409:
            raise _Retry("server_error", f"HTTP {status}: {words}", pause=_seconds(retry_after))
        if status in (401, 403):
            raise UserError(f"the server refused the API key (HTTP {status})", where=self.endpoint.url, value=words)
        if status in (404, 405):
            raise UserError(
                f"the server has no model {self.endpoint.model!r} or no completions at this address",
                where=self.endpoint.url,
                value=words,
                remedy="check the address and the model's name (GET /v1/models lists them)",
            )
        if status < 400:
            raise UserError(f"the server answered HTTP {status} instead of a completion", where=self.endpoint.url)
        self._note_success()  # it judged the request: it is alive
        return Failure("bad_request", f"HTTP {status}: {words}", retryable=False)

    def _note_success(self) -> None:
        self._failing_since, self._last_success = None, time.monotonic()

    def _note_failure(self, detail: str, began: float) -> None:
        if self._alive is not None:
            self._alive()
        now = time.monotonic()
        if self._failing_since is None:
            self._failing_since = max(began, self._last_success)
        if now - self._failing_since > self.patience_s:
            raise UserError(
                f"no request succeeded for {now - self._failing_since:.0f} s, the last one because: {detail}",
                where=self.endpoint.url,
                remedy="see the server's log; the same command resumes where this one stopped",
            )


async def generate(
    client: Client,
    requests: Iterable[Request] | AsyncIterable[Request],
    on_done: Callable[[Request, Completion | Failure], None],
) -> None:
    """Make all generations, `client.window` of them in flight, sent in the order of iteration.

    Requests are taken one at a time as places in the window get free, so an endless or slow iterable is fine; one that
    blocks for long belongs in a thread (`ahead`). `on_done` runs in the event loop and must be quick. When it raises,
    when the iterable raises, or on cancellation (Ctrl-C under asyncio.run), requests in flight are aborted, which
    makes the server drop them, and the exception goes on.
    """
    source = requests if isinstance(requests, AsyncIterable) else _walk(requests)
    iterator = aiter(source)
    turn = asyncio.Lock()  # first in, first out: the order of iteration is the order of sending

    async def worker() -> None:
        while True:
            async with turn:
                request = await anext(iterator, None)
            if request is None:
                return
            on_done(request, await client.complete(request))

    workers = [asyncio.ensure_future(worker()) for _ in range(client.window)]
    try:
        done, _ = await asyncio.wait(workers, return_when=asyncio.FIRST_EXCEPTION)
        for task in done:
            task.result()
    finally:
        for task in workers:
            task.cancel()
        await asyncio.gather(*workers, return_exceptions=True)
        if hasattr(iterator, "aclose"):
            await iterator.aclose()


async def ahead(requests: Iterable[Request], *, size: int = 256) -> AsyncIterator[Request]:
    """The same requests, iterated in a thread at most `size` ahead: reading and tokenising then don't stall sending."""
    loop = asyncio.get_running_loop()
    queue: asyncio.Queue = asyncio.Queue()
    room = asyncio.Semaphore(size)
    stopped = False

    def pump() -> None:
        last: object = _END
        try:
            for request in requests:
                asyncio.run_coroutine_threadsafe(room.acquire(), loop).result()
                if stopped:
                    return
                loop.call_soon_threadsafe(queue.put_nowait, request)
        except BaseException as error:  # handed to the consumer, whatever it is
            last = error
        finally:
            loop.call_soon_threadsafe(queue.put_nowait, last)

    thread = loop.run_in_executor(None, pump)
    try:
        while (item := await queue.get()) is not _END:
            if isinstance(item, BaseException):
                raise item
            room.release()
            yield item
    finally:
        stopped = True
        room.release()
        await thread


_END = object()


async def _walk(requests: Iterable[Request]) -> AsyncIterator[Request]:
    for request in requests:
        yield request


def _body(request: Request, model: str) -> tuple[str, bytes]:
    sampling = request.sampling
    fields: dict[str, object] = {
        "model": model,
        "max_tokens": sampling.max_tokens,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k,
        "frequency_penalty": sampling.frequency_penalty,
        "min_p": 0.0,
        "repetition_penalty": 1.0,
        "presence_penalty": 0.0,
        "seed": request.seed,
        "n": 1,
        "stream": False,
    }
    if sampling.min_tokens:
        fields["min_tokens"] = sampling.min_tokens
    if sampling.ignore_eos:
        fields["ignore_eos"] = True
    if sampling.stop:
        fields["stop"] = list(sampling.stop)
    if request.prompt and isinstance(request.prompt[0], dict):
        return "/v1/chat/completions", orjson.dumps(fields | {"messages": request.prompt})
    return "/v1/completions", orjson.dumps(fields | {"prompt": request.prompt})


def _parse(payload: bytes, endpoint: Endpoint, seconds: float) -> Completion:
    try:
        answer = orjson.loads(payload)
        choice = answer["choices"][0]
        text = choice["message"]["content"] if "message" in choice else choice["text"]
        usage = answer["usage"]
        prompt_tokens, completion_tokens = int(usage["prompt_tokens"]), int(usage["completion_tokens"])
        details = usage.get("prompt_tokens_details") or {}
        cached = details.get("cached_tokens")
        served, finish = answer.get("model"), choice.get("finish_reason")
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        shown = payload[:120].decode("utf-8", "replace")
        raise _Retry("bad_response", f"not a completion ({type(error).__name__}): {shown}") from None
    if not isinstance(text, str):
        raise _Retry("bad_response", "a completion without text")
    if isinstance(served, str) and served != endpoint.model:
        raise UserError(f"the server answered with model {served!r}, asked for {endpoint.model!r}", where=endpoint.url)
    if finish not in _FINISHED:
        # vLLM answers 200 with "abort" or "error" and half a text when it is shut down or its engine dies.
        raise _Retry("bad_response", f"the generation ended early: finish_reason {finish!r}")
    return Completion(text, finish, prompt_tokens, completion_tokens, cached, seconds)


def _reason(payload: bytes) -> str:
    """The server's words, out of the shapes in which servers put them, at most 500 characters."""
    text = payload[:4000].decode("utf-8", "replace")
    try:
        answer = json.loads(payload)
        error = answer.get("error", answer) if isinstance(answer, dict) else answer
        if isinstance(error, dict):
            error = error.get("message") or error.get("detail") or error
        text = error if isinstance(error, str) else json.dumps(error)
    except ValueError:
        pass
    return text.strip()[:500] or "no reason given"


def _seconds(retry_after: str | None) -> float | None:
    """Retry-After as seconds, from either of its forms; None when absent or unreadable; at most ten minutes."""
    if not retry_after:
        return None
    try:
        wait = float(retry_after)
    except ValueError:
        try:
            wait = parsedate_to_datetime(retry_after).timestamp() - time.time()
        except ValueError:
            return None
    return min(max(wait, 0.0), 600.0) if wait == wait else None  # noqa: PLR0124 (NaN)
