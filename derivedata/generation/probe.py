"""Finds out, by tiny requests, what an OpenAI-compatible server takes: the form of prompts, the fields of a request,
whether it keeps to seeds. What is dropped is said, never guessed."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import aiohttp
import orjson

from derivedata.errors import UserError
from derivedata.generation.client import authorization, untrusted
from derivedata.generation.request import Dialect, Endpoint, PromptForm, Sampling
from derivedata.generation.tokenizer import Tokenizer
from derivedata.generation.wire import BUSY, address, optional_fields, reason, seconds

PATIENCE_S = 60.0  # for a server that is busy while it is looked at
# Of several scripts, so that two tokenizers rarely cut it into equally many tokens.
SENTENCE = "Zürich's 12 quays, a naïve façade of 1,387.5 metres; 東京 and Київ, as {brackets} and\ttabs have it."
_CONTEXT = ("max_model_len", "context_length", "context_window", "max_context_length")


class Unreachable(UserError):
    """Nobody answers there, or nobody but errors: it may be well later."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Greeting:
    """What a server says of itself."""

    endpoint: Endpoint
    context: int | None = None  # tokens of prompt and answer, where it says so
    root: str | None = None  # what it says the model is: a hub id or a folder


@dataclass(kw_only=True, slots=True)
class Abilities:
    """What a server was found to take."""

    forms: dict[PromptForm, bool] = field(default_factory=dict)
    refusals: dict[PromptForm, str] = field(default_factory=dict)  # why a form is not taken
    dialect: Dialect
    seeds_kept: bool | None = None
    says_usage: bool = True


class Probe:
    """Talks to one server. Use inside an aiohttp session."""

    def __init__(self, session: aiohttp.ClientSession, endpoint: Endpoint):
        self.session, self.endpoint = session, endpoint

    # Who is there.

    async def greet(self, model: str | None) -> Greeting:
        """Look for the model in the server's list.

        Args:
            model: its name; None takes the only one.

        Raises:
            Unreachable: nobody answers.
            UserError: it is another API, refuses the key, or has no such model.
        """
        status, payload = await self._send("GET", f"{self.endpoint.url}/v1/models")
        prefix = "/v1"
        if status in (404, 405):
            other, listed = await self._send("GET", f"{self.endpoint.url}/models")
            if other == 200:
                status, payload, prefix = other, listed, ""
        self._refuse_key(status, payload)
        entries = _entries(payload) if status == 200 else None
        if entries is None and status not in (404, 405, 501):
            raise UserError(
                f"no OpenAI-compatible API answers here (HTTP {status} at /v1/models)",
                where=self.endpoint.url,
                value=reason(payload)[:120],
                remedy="name the root of one, e.g. http://host:8000",
            )
        if entries is None and model is None:
            raise UserError("the server does not list its models", where=self.endpoint.url, remedy="give --model")
        names = [str(entry.get("id")) for entry in entries or ()]
        if model is None and len(names) != 1:
            raise UserError(
                f"the server has {len(names)} models: {_some(names)}", where=self.endpoint.url, remedy="give --model"
            )
        model = model or names[0]
        if entries is not None and model not in names:
            raise UserError(
                f"the server has no model {model!r}, but {_some(names) or 'none at all'}",
                where=self.endpoint.url,
                remedy="give --model as it is listed",
            )
        entry = next((entry for entry in entries or () if entry.get("id") == model), {})
        sizes = [entry[name] for name in _CONTEXT if isinstance(entry.get(name), int)]
        root = entry.get("root")
        return Greeting(
            endpoint=replace(self.endpoint, model=model, dialect=Dialect(prefix=prefix)),
            context=sizes[0] if sizes else None,
            root=root if isinstance(root, str) and root != model else None,
        )

    # What it takes.

    async def try_out(self, tokenizer: Tokenizer, samplings: Sequence[Sampling]) -> Abilities:
        """Ask for a token or two in each form, with each field, and twice with one seed.

        Raises:
            Unreachable: the server does not answer.
            UserError: it takes no form at all, or refuses temperature, top_p or the limit of new tokens.
        """
        found = Abilities(dialect=self.endpoint.dialect)
        await self._forms(tokenizer, found)
        if not any(found.forms.values()):
            words = next(iter(found.refusals.values()))
            raise UserError(
                f"the server answers neither completions nor chat messages: {words}",
                where=self.endpoint.url,
                remedy="is it an OpenAI-compatible API, and the model one that writes text?",
            )
        form: PromptForm = next(form for form, taken in found.forms.items() if taken)
        await self._fields(form, samplings, found)
        if "seed" not in found.dialect.not_sent:
            found.seeds_kept = await self._keeps_seeds(form, found)
        return found

    async def _forms(self, tokenizer: Tokenizer, found: Abilities) -> None:
        ids = tokenizer.encode(SENTENCE)
        status, answer, words = await self._ask("text", SENTENCE, found, {})
        found.forms["text"] = status == 200
        found.refusals["text"] = found.refusals["tokens"] = words
        read = _used(answer)
        same = read is not None and read in (len(ids), len(ids) + len(tokenizer.beginning()))
        if status == 200 and not same:
            told = "does not say how many tokens it read" if read is None else f"reads {read} tokens"
            found.refusals["tokens"] = f"the server {told} where {tokenizer.name} has {len(ids)}"
        elif status == 200:
            status, answer, words = await self._ask("tokens", ids, found, {})
            found.forms["tokens"] = status == 200 and _used(answer) == len(ids)
            found.refusals["tokens"] = words or "it read other tokens than were sent"
        messages = [{"role": "user", "content": "Say yes."}]
        status, answer, words = await self._ask("chat", messages, found, {})
        found.forms["chat"] = status == 200
        found.refusals["chat"] = words
        found.says_usage = _used(answer) is not None if status == 200 else read is not None
        order: tuple[PromptForm, ...] = ("tokens", "chat", "text")
        found.forms = {form: found.forms.get(form, False) for form in order}

    async def _fields(self, form: PromptForm, samplings: Sequence[Sampling], found: Abilities) -> None:
        prompt = _tiny(form)
        needed = {(one.temperature, one.top_p) for one in samplings}
        for temperature, top_p in sorted(needed):
            fields = {"temperature": temperature, "top_p": top_p}
            status, _, words = await self._ask(form, prompt, found, fields)
            if status != 200:
                raise UserError(
                    f"the server refuses temperature {temperature:g} with top_p {top_p:g}: {words}",
                    where=self.endpoint.url,
                    remedy="give --temperature and --top-p that it takes",
                )
        variants = {orjson.dumps(fields): fields for fields in (optional_fields(one, 1) for one in samplings)}
        refused: list[str] = []
        for fields in variants.values():
            status, _, _ = await self._ask(form, prompt, found, _without(fields, refused))
            if status == 200:
                continue
            for name, value in fields.items():
                if name not in refused and (await self._ask(form, prompt, found, {name: value}))[0] != 200:
                    refused.append(name)
        found.dialect = replace(found.dialect, not_sent=tuple(sorted(refused)))

    async def _keeps_seeds(self, form: PromptForm, found: Abilities) -> bool:
        fields = {"temperature": 1.0, "seed": 20}
        texts = []
        for _ in range(2):
            status, answer, _ = await self._ask(form, _tiny(form), found, fields, tokens=12)
            texts.append((status, _said(answer)))
        return texts[0] == texts[1] and texts[0][0] == 200

    async def _ask(
        self, form: PromptForm, prompt: Any, found: Abilities, fields: dict[str, Any], *, tokens: int = 1
    ) -> tuple[int, dict[str, Any], str]:
        """Status, answer and words of refusal of one tiny request."""
        chat = form == "chat"
        asked = {"messages" if chat else "prompt": prompt, "model": self.endpoint.model, **fields}
        url = address(self.endpoint, chat=chat)
        status, payload = await self._send("POST", url, asked | {found.dialect.limit: tokens})
        if status == 400 and b"max_completion_tokens" in payload and found.dialect.limit == "max_tokens":
            # What models that think are told; they need room for it, too.
            found.dialect = replace(found.dialect, limit="max_completion_tokens")
            status, payload = await self._send("POST", url, asked | {found.dialect.limit: max(tokens, 64)})
        self._refuse_key(status, payload)
        if status == 402:
            raise UserError("the server wants to be paid first (HTTP 402)", where=url, value=reason(payload))
        try:
            answer = orjson.loads(payload)
        except ValueError:
            answer = None
        if status == 200 and isinstance(answer, dict) and answer.get("choices"):
            served = answer.get("model")
            if isinstance(served, str) and served != self.endpoint.model:
                found.dialect = replace(found.dialect, answers_as=served)
            return 200, answer, ""
        if status == 200:
            return 0, {}, f"not a completion: {payload[:80].decode('utf-8', 'replace')}"
        return status, {}, f"HTTP {status}: {reason(payload)}"

    # How it is talked to.

    async def _send(self, method: str, url: str, body: dict[str, Any] | None = None) -> tuple[int, bytes]:
        began = time.monotonic()
        while True:
            try:
                asked = self.session.request(
                    method,
                    url,
                    data=None if body is None else orjson.dumps(body),
                    headers=authorization(self.endpoint),
                    allow_redirects=False,
                )
                async with asked as response:
                    status, payload = response.status, await response.read()
            except aiohttp.ClientConnectorCertificateError as error:
                raise untrusted(self.endpoint, error) from None
            except aiohttp.ClientConnectorError as error:
                told = f"cannot connect: {error.os_error or error}"
                raise Unreachable(told, where=self.endpoint.url, remedy="is the server running?") from None
            except TimeoutError:
                raise Unreachable("the server does not answer", where=self.endpoint.url) from None
            except (aiohttp.ClientError, ValueError, OSError) as error:
                told = f"no HTTP server answers here: {error or type(error).__name__}"
                raise Unreachable(told, where=self.endpoint.url) from None
            if (status not in BUSY and status < 500) or status == 501:
                return status, payload
            if time.monotonic() - began > PATIENCE_S or status not in BUSY:
                raise Unreachable(f"HTTP {status}: {reason(payload)}", where=self.endpoint.url)
            await asyncio.sleep(min(10.0, (seconds(response.headers.get("Retry-After")) or 0.0) + 0.5))

    def _refuse_key(self, status: int, payload: bytes) -> None:
        if status in (401, 403):
            raise UserError(
                f"the server {'refused the API key' if self.endpoint.api_key else 'wants an API key'} (HTTP {status})",
                where=self.endpoint.url,
                value=reason(payload)[:120],
                remedy="set DERIVEDATA_API_KEY to the key for this server (OPENAI_API_KEY is sent over https alone)",
            )


def _tiny(form: PromptForm) -> Any:
    text = "Name a colour, a river and a number."
    return [{"role": "user", "content": text}] if form == "chat" else text


def _without(fields: dict[str, Any], names: Sequence[str]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if name not in names}


def _entries(payload: bytes) -> list[dict[str, Any]] | None:
    try:
        listed = orjson.loads(payload)
    except ValueError:
        return None
    entries = listed.get("data") if isinstance(listed, dict) else listed
    return [entry for entry in entries if isinstance(entry, dict)] if isinstance(entries, list) else None


def _used(answer: dict[str, Any]) -> int | None:
    usage = answer.get("usage")
    read = usage.get("prompt_tokens") if isinstance(usage, dict) else None
    return read if isinstance(read, int) else None


def _said(answer: dict[str, Any]) -> Any:
    choice = (answer.get("choices") or [{}])[0]
    return choice.get("text", choice.get("message"))


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")
