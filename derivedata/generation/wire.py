"""Requests and answers as they go over the wire to an OpenAI-compatible server."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from email.utils import parsedate_to_datetime
from typing import Any

import orjson

from derivedata.errors import UserError
from derivedata.generation.request import Completion, Endpoint, Failure, Request, Sampling

# The server is there but busy or not up yet: waiting is the cure, and waiting is bounded by the client's patience.
BUSY = frozenset({408, 425, 429, 503})
_FINISHED = frozenset({"stop", "length"})


class Retry(Exception):
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


def optional_fields(sampling: Sampling, seed: int) -> dict[str, Any]:
    """The fields of a request beyond model, prompt, temperature, top_p and limit: what servers take or refuse.

    Neutral values are sent too: vLLM's server takes its defaults from the model's generation_config.json.
    """
    fields: dict[str, Any] = {
        "top_k": sampling.top_k,
        "frequency_penalty": sampling.frequency_penalty,
        "min_p": 0.0,
        "repetition_penalty": 1.0,
        "presence_penalty": 0.0,
        "seed": seed,
    }
    if sampling.min_tokens:
        fields["min_tokens"] = sampling.min_tokens
    if sampling.ignore_eos:
        fields["ignore_eos"] = True
    if sampling.stop:
        fields["stop"] = list(sampling.stop)
    return fields


def address(endpoint: Endpoint, *, chat: bool) -> str:
    """Where completions are asked for."""
    return f"{endpoint.url}{endpoint.dialect.prefix}/{'chat/' if chat else ''}completions"


def encode(request: Request, endpoint: Endpoint) -> tuple[str, bytes]:
    """Address and body of a request."""
    sampling, dialect = request.sampling, endpoint.dialect
    optional = optional_fields(sampling, request.seed)
    fields: dict[str, Any] = {
        "model": endpoint.model,
        dialect.limit: sampling.max_tokens,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        **{name: value for name, value in optional.items() if name not in dialect.not_sent},
    }
    if request.prompt and isinstance(request.prompt[0], dict):
        return address(endpoint, chat=True), orjson.dumps(fields | {"messages": request.prompt})
    return address(endpoint, chat=False), orjson.dumps(fields | {"prompt": request.prompt})


def decode(
    payload: bytes, endpoint: Endpoint, request: Request, seconds: float, count: Callable[[str], int] | None
) -> Completion | Failure:
    """The completion in an answer.

    Args:
        payload: body of the answer.
        endpoint, request: who was asked what.
        seconds: how long it took.
        count: counts the tokens of a text, for servers that don't say what they used.

    Raises:
        Retry: it is none, or not finished.
        UserError: another model has answered.
    """
    try:
        answer = orjson.loads(payload)
        (choice,) = answer["choices"]  # one was asked for: of several none is known to be the seed's
        text = _text(choice)
        finish, served = choice.get("finish_reason"), answer.get("model")
        usage = answer["usage"] if count is None else answer.get("usage") or {}
        prompt_tokens, completion_tokens = usage.get("prompt_tokens"), usage.get("completion_tokens")
        if count is not None and isinstance(text, str):
            prompt_tokens = request.prompt_tokens if prompt_tokens is None else prompt_tokens
            completion_tokens = count(text) if completion_tokens is None else completion_tokens
        prompt_tokens, completion_tokens = int(prompt_tokens), int(completion_tokens)
        cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens")
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        shown = payload[:120].decode("utf-8", "replace")
        raise Retry("bad_response", f"not a completion ({type(error).__name__}): {shown}") from None
    if not isinstance(text, str):
        raise Retry("bad_response", "a completion without text")
    expected = endpoint.dialect.answers_as or endpoint.model
    if isinstance(served, str) and served != expected:
        raise UserError(f"the server answered with model {served!r}, asked for {expected!r}", where=endpoint.url)
    if finish == "content_filter":
        return Failure("bad_request", "the server's content filter stopped the answer", retryable=False)
    if finish not in _FINISHED:
        # vLLM answers 200 with "abort" or "error" and half a text when it is shut down or its engine dies.
        raise Retry("bad_response", f"the generation ended early: finish_reason {finish!r}")
    return Completion(text, finish, prompt_tokens, completion_tokens, cached, seconds)


def _text(choice: dict[str, Any]) -> Any:
    message = choice.get("message")
    if message is None:
        return choice["text"]
    # A model that was still thinking when its tokens ran out has answered nothing, and would do so again.
    thought = message.get("reasoning_content") or message.get("reasoning")
    return "" if message.get("content") is None and thought else message["content"]


def refuse(status: int, payload: bytes, retry_after: str | None, endpoint: Endpoint) -> Failure:
    """What a status other than 200 means.

    Raises:
        Retry: it may pass.
        UserError: it concerns every request: the key, the model's name, the address.
    """
    words = reason(payload)
    if status in BUSY:
        raise Retry("server_error", f"HTTP {status}: {words}", counts=False, pause=seconds(retry_after))
    if status >= 500 or status == 409:
        raise Retry("server_error", f"HTTP {status}: {words}", pause=seconds(retry_after))
    if status in (401, 403):
        raise UserError(f"the server refused the API key (HTTP {status})", where=endpoint.url, value=words)
    if status == 402:
        raise UserError("the server wants to be paid first (HTTP 402)", where=endpoint.url, value=words)
    if status in (404, 405):
        raise UserError(
            f"the server has no model {endpoint.model!r} or no completions at this address",
            where=endpoint.url,
            value=words,
            remedy="check the address and the model's name (GET /v1/models lists them)",
        )
    if status < 400:
        raise UserError(f"the server answered HTTP {status} instead of a completion", where=endpoint.url)
    return Failure("bad_request", f"HTTP {status}: {words}", retryable=False)


def reason(payload: bytes) -> str:
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


def seconds(retry_after: str | None) -> float | None:
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
