"""Connects to servers that run already: whose key, which model and tokenizer, what all of them take.

connection = connect(["https://host/v1"], model="name", tokenizer="org/name", samplings=[Sampling(max_tokens=256)])
"""

from __future__ import annotations

import asyncio
import hashlib
import ipaddress
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from derivedata.errors import UserError
from derivedata.generation import embedded
from derivedata.generation.client import new_session
from derivedata.generation.model import ModelFolder, resolve_tokenizer
from derivedata.generation.probe import Abilities, Greeting, Probe, Unreachable
from derivedata.generation.request import Endpoint, PromptForm, Sampling
from derivedata.generation.served import find_served
from derivedata.generation.tokenizer import Tokenizer, load_tokenizer

OWN_KEY, USUAL_KEY = "DERIVEDATA_API_KEY", "OPENAI_API_KEY"
IN_FLIGHT = 64  # requests at each server, unless told otherwise
DEADLINE_S = 120.0  # for a tiny request
_TAILS = ("/chat/completions", "/completions", "/models", "/v1")


@dataclass(frozen=True, kw_only=True, slots=True)
class ServedModel:
    """A model behind servers that run already."""

    path: Path  # folder of its tokenizer
    name: str  # what the servers call it
    revision: str | None  # the model's name in the answers, where it says more than the one asked for
    context: int | None  # tokens of prompt and answer; None where the servers don't say


@dataclass(frozen=True, kw_only=True, slots=True)
class Connection:
    """Servers that run already and what they have in common."""

    endpoints: tuple[Endpoint, ...]
    model: ServedModel | ModelFolder
    context: int | None  # tokens of prompt and answer that they take; None where they don't say
    in_flight: int  # requests, on all servers together
    form: PromptForm = "tokens"
    not_sent: tuple[str, ...] = ()  # fields that one of them refuses, so that none gets them
    ours: bool = False  # `derivedata serve`: nothing differs from a server that the run starts
    identity: dict[str, Any] = field(default_factory=dict)  # of what determines texts, for the run record
    found: tuple[dict[str, Any], ...] = ()  # for the run record, a server each
    lines: tuple[str, ...] = ()  # the same for people


def connect(
    urls: Sequence[str],
    *,
    model: str | None,
    tokenizer: str | None,
    samplings: Sequence[Sampling],
    plain: bool | None = None,
    in_flight: int | None = None,
) -> Connection:
    """Look at servers and find what they have in common.

    Args:
        urls: their roots, with or without /v1; `local` is the one of `derivedata serve`.
        model: the served model's name; None takes the only one.
        tokenizer: folder or hub id of its tokenizer; None looks for it by the model's name.
        samplings: of the requests that will be made.
        plain: ask without a chat template; None: where the tokenizer has none.
        in_flight: requests at each server.

    Raises:
        UserError: in one line, whatever is wrong with them.
    """
    if len(urls) == 1 and (served := find_served(urls[0])) is not None:
        if model not in (None, served.model.name, str(served.model.path)):
            raise UserError(
                f"the server has no model {model!r}, but {served.model.name}", where=served.endpoint.url, value=model
            )
        return Connection(
            endpoints=(served.endpoint,),
            model=served.model,
            context=served.context,
            in_flight=in_flight or served.window,
            ours=True,
            lines=(f"{served.endpoint.url}: derivedata serve with {served.model.name}",),
        )
    roots = [root(url) for url in dict.fromkeys(urls)]
    places = [Endpoint(url=place, model=model or "", api_key=key_for(place)) for place in roots]
    look = _Look(places, model, tokenizer, samplings, plain)
    # A loop of its own in a thread of its own: the caller may have one running (a notebook).
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, look.run(in_flight or IN_FLIGHT)).result()


def root(url: str) -> str:
    """The root of a server, from however its address was given.

    Raises:
        UserError: it is no http(s) address, or holds what doesn't belong there, such as a key.
    """
    parts = urlsplit(url)
    try:
        sound = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        sound = False
    if not sound:
        raise UserError(
            "not the address of a server",
            where="--endpoint",
            value=url,
            remedy="write http://HOST:PORT or https://HOST",
        )
    if parts.username is not None or parts.query or parts.fragment:
        # Not shown: it may be the key.
        raise UserError(
            "an address holds no key, query or fragment",
            where="--endpoint",
            value=f"{parts.scheme}://{parts.hostname}",
            remedy=f"the key goes into {OWN_KEY}",
        )
    path = parts.path.rstrip("/")
    while tail := next((tail for tail in _TAILS if path.endswith(tail)), None):
        path = path.removesuffix(tail)
    return f"{parts.scheme}://{parts.netloc}{path}"


def key_for(url: str) -> str | None:
    """The key that a server gets: ours, which is meant for it, or the usual one where nobody can read it on its way."""
    usual = None if _in_the_clear(url) else os.environ.get(USUAL_KEY)
    return os.environ.get(OWN_KEY) or usual or None


def withheld(url: str) -> str | None:
    """What to say where there is a key that this server does not get."""
    if os.environ.get(USUAL_KEY) and not os.environ.get(OWN_KEY) and _in_the_clear(url):
        return f"{USUAL_KEY} is not sent over plain http; if this server is to have a key, set {OWN_KEY}"
    return None


def _in_the_clear(url: str) -> bool:
    """Whether what is sent to this address leaves the machine unencrypted."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    try:
        here = ipaddress.ip_address(host).is_loopback
    except ValueError:
        here = host == "localhost" or host.endswith(".localhost")
    return parts.scheme == "http" and not here


class _Look:
    """One look at all servers."""

    def __init__(
        self,
        places: Sequence[Endpoint],
        model: str | None,
        tokenizer: str | None,
        samplings: Sequence[Sampling],
        plain: bool | None,
    ):
        self.places, self.model, self.tokenizer_name = places, model, tokenizer
        self.samplings, self.plain = samplings, plain

    async def run(self, in_flight: int) -> Connection:
        async with new_session(self.places, DEADLINE_S) as session:
            greetings, absent = await self._greet(session)
            name = greetings[0].endpoint.model
            folder = self._tokenizer(name, greetings)
            tokenizer = load_tokenizer(folder.path, self.tokenizer_name or name)
            tried = [
                (greeting, await Probe(session, greeting.endpoint).try_out(tokenizer, self.samplings))
                for greeting in greetings
            ]
        form = self._form([abilities for _, abilities in tried], tokenizer)
        dropped = tuple(sorted({field for _, abilities in tried for field in abilities.dialect.not_sent}))
        speaks = [
            replace(greeting.endpoint, dialect=replace(abilities.dialect, not_sent=dropped))
            for greeting, abilities in tried
        ]
        common = replace(speaks[0].dialect, answers_as=None)
        answers = {abilities.dialect.answers_as for _, abilities in tried}
        contexts = [greeting.context for greeting in greetings if greeting.context]
        model = ServedModel(
            path=folder.path,
            name=name,
            revision=answers.pop() if len(answers) == 1 else None,
            context=min(contexts, default=None),
        )
        matter = {name: value for name, value in _matters(self.samplings).items() if name in dropped and value}
        found = [_found(*one, form) for one in tried]
        return Connection(
            # One that does not answer now is spoken to like the others once it does.
            endpoints=(*speaks, *(replace(place, model=name, dialect=common) for place, _ in absent)),
            model=model,
            context=model.context,
            in_flight=in_flight * len(self.places),
            form=form,
            not_sent=dropped,
            identity={
                "asked_as": form,
                "not_sent": sorted(matter),
                "prompts_by": _fingerprint(tokenizer, form),
            },
            found=(*found, *({"url": place.url, "absent": error.what} for place, error in absent)),
            lines=(
                *(_line(one, self.samplings) for one in found),
                *(f"{place.url}: {error.what}; left out for now" for place, error in absent),
                *(f"{place.url}: {words}" for place in self.places if (words := withheld(place.url))),
            ),
        )

    async def _greet(self, session: Any) -> tuple[list[Greeting], list[tuple[Endpoint, Unreachable]]]:
        greetings, absent = [], []
        for place in self.places:
            known = greetings[0].endpoint.model if greetings else self.model
            try:
                greetings.append(await Probe(session, place).greet(known))
            except Unreachable as error:
                absent.append((place, error))
        if not greetings:
            raise absent[0][1]
        return greetings, absent

    def _tokenizer(self, name: str, greetings: Sequence[Greeting]) -> ModelFolder:
        if self.tokenizer_name:
            return resolve_tokenizer(self.tokenizer_name)
        candidates = [name, *(greeting.root for greeting in greetings if greeting.root)]
        for candidate in dict.fromkeys(candidates):
            # A name that is no hub id and no folder needs no look at the hub.
            if candidate == embedded.NAME or "/" in candidate or Path(candidate).is_dir():
                try:
                    return resolve_tokenizer(candidate)
                except UserError:
                    continue
        raise UserError(
            f"no tokenizer is known for the model {name!r}",
            where=greetings[0].endpoint.url,
            remedy="give --tokenizer with a folder or hub id: texts are cut and counted with it",
        )

    def _form(self, tried: Sequence[Abilities], tokenizer: Tokenizer) -> PromptForm:
        plain = tokenizer.chat_template is None if self.plain is None else self.plain
        order: Sequence[PromptForm] = ("tokens", "text", "chat") if plain else ("tokens", "chat", "text")
        for form in order:
            if form == "chat" and self.plain:
                break
            if all(one.forms[form] for one in tried):
                return form
        where = ", ".join(place.url for place in self.places)
        if self.plain:
            words = next(one.refusals["text"] for one in tried if not one.forms["text"])
            raise UserError(f"the server takes chat messages only: {words}", where=where, remedy="use --template chat")
        raise UserError("the servers have no form of prompt in common", where=where, remedy="use some of them")


def _matters(samplings: Sequence[Sampling]) -> dict[str, bool]:
    """Fields that change the distribution of texts, and whether these samplings use them."""
    return {
        "top_k": any(one.top_k != -1 for one in samplings),
        "frequency_penalty": any(one.frequency_penalty for one in samplings),
        "stop": any(one.stop for one in samplings),
        "min_tokens": any(one.min_tokens for one in samplings),
    }


def _fingerprint(tokenizer: Tokenizer, form: PromptForm) -> str:
    """What prompts depend on beside the texts: the tokenizer that cuts, and the template where it is ours."""
    template = tokenizer.chat_template.source if tokenizer.chat_template and form != "chat" else ""
    return hashlib.sha256(f"{tokenizer.sha256}\0{template}".encode()).hexdigest()


def _found(greeting: Greeting, abilities: Abilities, form: PromptForm) -> dict[str, Any]:
    return {
        "url": greeting.endpoint.url,
        "asked_as": form,
        "takes": [name for name, taken in abilities.forms.items() if taken],
        "refuses": {name: abilities.refusals[name] for name, taken in abilities.forms.items() if not taken},
        "not_sent": list(abilities.dialect.not_sent),
        "keeps_to_seeds": abilities.seeds_kept,
        "says_usage": abilities.says_usage,
        "context": greeting.context,
        "answers_as": abilities.dialect.answers_as,
    }


def _line(found: dict[str, Any], samplings: Sequence[Sampling]) -> str:
    forms = {"tokens": "token ids", "text": "text", "chat": "chat messages"}
    parts = [f"asked with {forms[found['asked_as']]}"]
    if why := found["refuses"].get("tokens"):
        parts[0] += f" ({why[:100]})"
    if found["context"]:
        parts.append(f"context {found['context']:,}")
    if found["not_sent"]:
        used = [name for name, value in _matters(samplings).items() if value and name in found["not_sent"]]
        told = f" (so {', '.join(used)} of the styles has no effect)" if used else ""
        parts.append(f"takes no {', '.join(found['not_sent'])}{told}")
    if found["keeps_to_seeds"] is False:
        parts.append("does not keep to seeds: its texts can't be made again")
    if not found["says_usage"]:
        parts.append("does not say what it used: tokens are counted here")
    return f"{found['url']}: {'; '.join(parts)}"
