"""Asks servers for completions: a window of requests in flight, deadlines, retries, and a limit to patience."""

from __future__ import annotations

import asyncio
import random
import ssl
import time
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Sequence
from urllib.parse import urlsplit

import aiohttp

from derivedata.errors import UserError
from derivedata.generation import wire
from derivedata.generation.balance import Balancer, Place
from derivedata.generation.request import Completion, Endpoint, Failure, Request, Sampling
from derivedata.generation.wire import Retry

__all__ = ["Client", "Completion", "Endpoint", "Failure", "Request", "Sampling", "generate"]

_LONGEST_PAUSE_S = 30.0
_LOOPBACK = ("127.0.0.1", "localhost", "::1")


def new_session(endpoints: Sequence[Endpoint], deadline_s: float) -> aiohttp.ClientSession:
    """A session for these servers. Certificates are verified (SSL_CERT_FILE adds an authority of one's own)."""
    # Made here and not left to aiohttp, which looks at SSL_CERT_FILE when it is imported and never again.
    secure = any(endpoint.url.startswith("https:") for endpoint in endpoints)
    return aiohttp.ClientSession(
        # The window bounds the connections. Idle ones are dropped before uvicorn does so after 5 s, which would
        # look like a broken connection to the request that meets it.
        connector=aiohttp.TCPConnector(
            limit=0, keepalive_timeout=4, ssl=ssl.create_default_context() if secure else True
        ),
        timeout=aiohttp.ClientTimeout(total=deadline_s),
        headers={"Content-Type": "application/json"},
        # A proxy that the environment names is for hosts outside.
        trust_env=all(urlsplit(endpoint.url).hostname not in _LOOPBACK for endpoint in endpoints),
    )


def authorization(endpoint: Endpoint) -> dict[str, str]:
    """The header that carries the key."""
    return {"Authorization": f"Bearer {endpoint.api_key}"} if endpoint.api_key else {}


def untrusted(endpoint: Endpoint, error: Exception) -> UserError:
    """What is said of a certificate that can't be verified."""
    words = getattr(getattr(error, "certificate_error", None), "verify_message", "") or str(error)
    return UserError(
        f"the server's certificate cannot be verified: {words}",
        where=endpoint.url,
        remedy="set SSL_CERT_FILE to the certificate of its authority",
    )


class Client:
    """Sends requests to one endpoint, or to several that serve the same model, and comes back with an outcome for each.

    A request that fails in a way that may pass (timeouts, connection errors, 408, 425, 429, 5xx, answers that make no
    sense) is sent again, to another server at once where there is one that is well, else after a growing pause with
    jitter, or the one in Retry-After. Being refused for being busy (408, 425, 429, 503, nobody listening) costs no
    attempt: only the client's patience bounds it.

    Args:
        endpoints: the server or servers.
        window: requests in flight at most in `generate`, on all servers together.
        deadline_s: seconds one attempt may take.
        attempts: how often one request is tried before it becomes a `Failure`.
        patience_s: seconds in which nothing at all succeeds before `complete` raises a UserError.
        pause_s: the first pause, in seconds; doubled with each further attempt up to 30 s.
        alive: called when a request fails; raises when the server is known to be gone for good.
        count: counts the tokens of a text, for servers that don't say what they used.

    Use as an async context manager.
    """

    def __init__(
        self,
        endpoints: Endpoint | Sequence[Endpoint],
        *,
        window: int = 64,
        deadline_s: float = 900.0,
        attempts: int = 6,
        patience_s: float = 900.0,
        pause_s: float = 0.5,
        alive: Callable[[], None] | None = None,
        count: Callable[[str], int] | None = None,
    ):
        self.endpoints = [endpoints] if isinstance(endpoints, Endpoint) else list(endpoints)
        self.window = window
        self.deadline_s, self.attempts, self.patience_s, self.pause_s = deadline_s, attempts, patience_s, pause_s
        self.retries = 0  # attempts that failed and were made again
        self.balancer = Balancer(self.endpoints)
        self._alive, self._count = alive, count
        self._failing_since: float | None = None
        self._last_success = 0.0
        self._jitter = random.Random()
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Client:
        self._session = new_session(self.endpoints, self.deadline_s)
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._session.close()
        self._session = None

    async def complete(self, request: Request) -> Completion | Failure:
        """The outcome of one request.

        Raises:
            UserError: a server refuses the key or doesn't know the model, or nothing succeeded for `patience_s`.
        """
        counted = tries = 0
        place = None
        while True:
            place = await self._place(request.group, place)
            began = time.monotonic()
            try:
                return await self._attempt(request, place)
            except Retry as failed:
                counted += failed.counts
                tries += 1
                self._note_failure(failed.detail, began)
                if counted >= self.attempts:
                    return Failure(failed.reason, f"{failed.detail} (tried {tries} times)", retryable=True)
                self.retries += 1
                if not self.balancer.others_ready(place):
                    pause = min(self.pause_s * 2 ** min(tries - 1, 10), _LONGEST_PAUSE_S)
                    # Never less than the server asked for; the jitter keeps a window from coming back at once.
                    await asyncio.sleep((failed.pause or 0.0) + pause * self._jitter.uniform(0.5, 1.0))

    async def _place(self, group: str, avoid: Place | None) -> Place:
        while (place := self.balancer.take(group, avoid=avoid)) is None:
            await asyncio.sleep(self.balancer.rest_s() + 0.1 * self._jitter.random())
        return place

    async def _attempt(self, request: Request, place: Place) -> Completion | Failure:
        try:
            outcome = await self._ask(request, place.endpoint)
        except Retry as failed:
            unreachable = failed.detail.startswith(_UNREACHABLE)
            self.balancer.failed(place, unreachable=unreachable, pause=failed.pause)
            raise
        finally:
            self.balancer.leave(place)
        self.balancer.succeeded(place)
        # A server that judged the request and refused it is alive too.
        self._failing_since, self._last_success = None, time.monotonic()
        return outcome

    async def _ask(self, request: Request, endpoint: Endpoint) -> Completion | Failure:
        began = time.monotonic()
        url, body = wire.encode(request, endpoint)
        try:
            # A redirect would carry the key to wherever it points.
            asked = self._session.post(url, data=body, headers=authorization(endpoint), allow_redirects=False)
            async with asked as response:
                payload = await response.read()
        except TimeoutError:
            raise Retry("timeout", f"no answer within {self.deadline_s:g} s") from None
        except aiohttp.ClientConnectorCertificateError as error:
            raise untrusted(endpoint, error) from None
        except aiohttp.ClientConnectorError as error:
            raise Retry("server_error", f"{_UNREACHABLE}: {error.os_error or error}", counts=False) from None
        except (aiohttp.ClientError, OSError) as error:
            raise Retry("server_error", f"connection lost: {error or type(error).__name__}") from None
        if response.status != 200:
            return wire.refuse(response.status, payload, response.headers.get("Retry-After"), endpoint)
        return wire.decode(payload, endpoint, request, time.monotonic() - began, self._count)

    def _note_failure(self, detail: str, began: float) -> None:
        if self._alive is not None:
            self._alive()
        now = time.monotonic()
        if self._failing_since is None:
            self._failing_since = max(began, self._last_success)
        if now - self._failing_since > self.patience_s:
            raise UserError(
                f"no request succeeded for {now - self._failing_since:.0f} s, the last one because: {detail}",
                where=", ".join(endpoint.url for endpoint in self.endpoints),
                remedy="see the server's log; the same command resumes where this one stopped",
            )


_UNREACHABLE = "cannot connect"


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
