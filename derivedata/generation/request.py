"""What is asked of a model and what comes back: endpoints, sampling parameters, requests and their outcomes."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal

from derivedata.errors import UserError

# How a prompt is sent: as token ids, as one text, or as chat messages to which the server applies its own template.
PromptForm = Literal["tokens", "text", "chat"]
Prompt = list[int] | str | list[dict[str, str]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Dialect:
    """How a server is spoken to; the default is vLLM's."""

    prefix: str = "/v1"  # between the root and /completions
    not_sent: tuple[str, ...] = ()  # fields of a request that it refuses
    limit: str = "max_tokens"  # what it calls the limit of new tokens
    answers_as: str | None = None  # the model's name in its answers; None: the name it is asked for


@dataclass(frozen=True, kw_only=True, slots=True)
class Endpoint:
    """An OpenAI-compatible server that answers for one model."""

    url: str  # root of the server, without /v1
    model: str  # the name it serves the model under
    api_key: str | None = field(default=None, repr=False)  # kept out of logs and tracebacks
    dialect: Dialect = Dialect()


@dataclass(frozen=True, kw_only=True, slots=True)
class Sampling:
    """Sampling parameters of one request; all are sent, since a server fills gaps from the model's own defaults.

    Raises:
        UserError: a value is outside its range.
    """

    max_tokens: int  # new tokens at most
    temperature: float = 0.7  # 0 is greedy
    top_p: float = 1.0  # in (0, 1]
    top_k: int = -1  # -1: all tokens
    frequency_penalty: float = 0.0  # in [-2, 2]; taken from a token's logit for each time it was written already
    min_tokens: int = 0  # no end of text before so many new tokens
    ignore_eos: bool = False  # measurements only: go on to max_tokens
    stop: tuple[str, ...] = ()  # texts that end the generation

    def __post_init__(self) -> None:
        # `not (a <= x)` instead of `x < a`: a NaN must not pass.
        if not self.max_tokens >= 1:
            raise UserError("max_tokens must be at least 1", value=self.max_tokens)
        if not 0 <= self.temperature < math.inf:
            raise UserError("temperature must be 0 or more", value=self.temperature)
        if not 0 < self.top_p <= 1:
            raise UserError("top_p must be above 0 and at most 1", value=self.top_p)
        if not -2 <= self.frequency_penalty <= 2:
            raise UserError("frequency_penalty must be from -2 to 2", value=self.frequency_penalty)
        if not (self.top_k == -1 or self.top_k >= 1):
            raise UserError("top_k must be -1 (all tokens) or at least 1", value=self.top_k)
        if not 0 <= self.min_tokens <= self.max_tokens:
            raise UserError("min_tokens must be between 0 and max_tokens", value=self.min_tokens)


@dataclass(slots=True)
class Request:
    """One generation to make."""

    key: str  # what the caller knows it by; never sent
    prompt: Prompt
    sampling: Sampling
    seed: int  # in [0, 2**63)
    tag: object = None  # the caller's own
    group: str = ""  # requests of a group begin alike: of several servers one gets them all, for its prefix cache
    prompt_tokens: int = 0  # as counted here, for servers that don't say


@dataclass(slots=True)
class Completion:
    """A finished generation."""

    text: str
    finish_reason: str  # "stop" or "length"
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int | None  # prompt tokens found in the prefix cache; None where the server doesn't say
    seconds: float  # from sending to answer, of the attempt that succeeded


@dataclass(slots=True)
class Failure:
    """A generation that could not be made."""

    reason: str  # "bad_request" | "timeout" | "server_error" | "bad_response"
    detail: str  # the server's words or ours, bounded
    retryable: bool  # whether asking again later can help
