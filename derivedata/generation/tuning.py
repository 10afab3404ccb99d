"""Finds the server settings that are fastest on this machine: one change at a time, each measured against the best.

    derivedata tune

The defaults stand first. A change takes their place only when it is faster in the median of paired rounds by more than
the noise of such a pair, so that what comes out is at least as good as the defaults, on an idle machine and on a busy
one.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from derivedata.errors import UserError
from derivedata.generation import hardware
from derivedata.generation.client import Client, Completion, Request, Sampling, generate
from derivedata.generation.launch import ServerSettings, resolve
from derivedata.generation.model import ModelFolder
from derivedata.generation.profile import TUNED, Profile
from derivedata.generation.prompt import PromptBuilder
from derivedata.generation.server import VllmServer
from derivedata.generation.style import load_styles, shipped_styles
from derivedata.generation.tokenizer import load_tokenizer

MARGIN = 1.03  # paired rounds of the same settings differ by so much on a machine that is not quite idle
NEW_TOKENS = 64  # of a generation; all of the same length, so that rounds do the same work
SERVER_GIB = 4  # beside its weights and cache
_SAMPLING = Sampling(
    max_tokens=NEW_TOKENS, min_tokens=NEW_TOKENS, ignore_eos=True, temperature=0.7, top_p=0.95, top_k=50
)
_NGRAM = (("speculative-config", '{"method":"ngram","num_speculative_tokens":4,"prompt_lookup_max":4}'),)
_SUFFIX = (("speculative-config", '{"method":"suffix","num_speculative_tokens":16}'),)


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    """One change, measured."""

    change: str
    ratios: tuple[float, ...]  # new tokens/s with it over without, a pair each; empty: it could not be started
    kept: bool
    detail: str = ""

    @property
    def ratio(self) -> float | None:
        """The median of the paired ratios."""
        return statistics.median(self.ratios) if self.ratios else None


# Measures the second settings against the first: paired ratios of new tokens/s.
Compare = Callable[[ServerSettings, ServerSettings], Sequence[float]]


def candidates(model: ModelFolder, settings: ServerSettings, *, long: bool) -> list[tuple[str, dict[str, Any]]]:
    """The changes worth a try on this machine, the likely ones first.

    Args:
        model: what is served.
        settings: what the user has fixed; such fields are left alone.
        long: whether the time that compiling takes at the start is worth its while.

    Returns:
        Pairs of a name and the fields of `ServerSettings` that it changes.
    """
    launch, cores = resolve(model, settings), len(hardware.usable_cores())
    found: list[tuple[str, dict[str, Any]]] = []
    if launch.device == "cpu":
        others = sorted({1, cores - 1, cores} - {0, launch.threads}, reverse=True)
        found += [(f"threads {threads}", {"threads": threads}) for threads in others]
        found += [(f"block size {size}", {"block_size": size}) for size in (64, 128, 16)]
    else:
        found += [(f"block size {size}", {"block_size": size}) for size in (32, 64)]
    for seqs in (launch.max_num_seqs * 2, launch.max_num_seqs // 2):
        found.append((f"max num seqs {seqs}", {"max_num_seqs": seqs}))
    # Rewrites repeat their source, which makes speculation from the prompt a gain wherever the engine does it well.
    if launch.device == "cuda" and importlib.util.find_spec("arctic_inference"):
        found.insert(0, ("suffix speculation", {"extra": _SUFFIX}))
    found.append(("n-gram speculation", {"extra": _NGRAM}))
    if long and launch.device == "cpu":
        found.append(("compiled", {"eager": False}))
    given = {key for key, _ in settings.extra}

    def free(change: dict[str, Any]) -> bool:
        fields = {name for name in change if name != "extra"}
        return all(getattr(settings, name) is None for name in fields) and not given & {
            key for key, _ in change.get("extra", ())
        }

    return [(name, change) for name, change in found if free(change)]


def search(
    start: ServerSettings,
    changes: Sequence[tuple[str, dict[str, Any]]],
    compare: Compare,
    *,
    seconds: float,
    say: Callable[[str], None],
    now: Callable[[str], None],
) -> tuple[ServerSettings, float, list[Comparison]]:
    """Try each change on the best settings so far, and keep what is faster.

    Args:
        start: the settings to begin with.
        changes: names, and fields to change.
        compare: measures a challenger against the best.
        seconds: no further change is tried after so long.
        say: hears each result.
        now: hears what is being measured.

    Returns:
        The best settings, the product of the gains that were kept, and what was measured.
    """
    best, gain, done, began = start, 1.0, [], time.monotonic()
    kept_fields: set[str] = set()
    for number, (name, change) in enumerate(changes):
        if time.monotonic() - began > seconds:
            say(f"time is up; not tried: {', '.join(left for left, _ in changes[number:])}")
            break
        if kept_fields & change.keys():
            continue  # another value of what has just been found better
        challenger = replace(best, **change)
        now(f"{name} ({number + 1} of {len(changes)})")
        try:
            ratios, detail = tuple(compare(best, challenger)), ""
        except UserError as error:  # the engine doesn't do it here: so it isn't better
            ratios, detail = (), error.line
        kept = bool(ratios) and statistics.median(ratios) > MARGIN
        done.append(one := Comparison(change=name, ratios=ratios, kept=kept, detail=detail))
        if kept:
            best, gain = challenger, gain * one.ratio
            kept_fields |= change.keys()
        say(describe(one))
    return best, gain, done


def describe(comparison: Comparison) -> str:
    """A comparison in one line."""
    if not comparison.ratios:
        return f"{comparison.change}: could not be measured ({comparison.detail[:200]})"
    low, high = min(comparison.ratios), max(comparison.ratios)
    word = "kept" if comparison.kept else "left"
    return f"{comparison.change}: {comparison.ratio:.2f}x ({low:.2f} to {high:.2f}), {word}"


def tune(
    model: ModelFolder,
    settings: ServerSettings,
    texts: Sequence[str],
    *,
    log: Path,
    minutes: float,
    long: bool,
    say: Callable[[str], None],
    now: Callable[[str], None] = lambda what: None,
    pairs: int = 3,
    round_s: float = 12.0,
) -> Profile:
    """Measure this machine with a model.

    Args:
        model: what is served.
        settings: what is fixed; the rest is tried.
        texts: documents to rewrite, some dozens of usual length.
        log: file for what the servers print.
        minutes: no further change is tried after so long.
        long: also try to compile.
        say: hears each result.
        now: hears what is being measured.
        pairs: rounds of each side.
        round_s: seconds of a round, about.

    Returns:
        What is best, as a profile.

    Raises:
        UserError: the server does not start with the defaults.
    """
    idle = hardware.idle_cores(1.0)
    with _Arena(model, texts, log, pairs=pairs, round_s=round_s) as arena:
        now("the defaults")
        arena.start(settings)
        best, gain, measured = search(
            settings, candidates(model, settings, long=long), arena.compare, seconds=minutes * 60, say=say, now=now
        )
    changed = {name: getattr(best, name) for name in TUNED if getattr(best, name) != getattr(settings, name)}
    if "extra" in changed:
        changed["extra"] = [pair for pair in best.extra if pair not in settings.extra]
    rows = [
        {"change": one.change, "ratio": one.ratio, "ratios": list(one.ratios), "kept": one.kept, "detail": one.detail}
        for one in measured
    ]
    return Profile(settings=changed, idle=idle, gain=gain, measured=rows)


class _Arena:
    """Servers side by side where memory allows, one after the other where not, and rounds of work for them."""

    def __init__(self, model: ModelFolder, texts: Sequence[str], log: Path, *, pairs: int, round_s: float):
        self.model, self.texts, self.log, self.pairs, self.round_s = model, texts, log, pairs, round_s
        self.builder = PromptBuilder(load_tokenizer(model.path))
        self.instructions = [style.instruction for style in load_styles(shipped_styles()).values()]
        self.rounds, self.requests = 0, 0
        self.servers: dict[ServerSettings, tuple[VllmServer, contextlib.ExitStack]] = {}

    def __enter__(self) -> _Arena:
        return self

    def __exit__(self, *exc: object) -> None:
        for _, stack in self.servers.values():
            stack.close()
        self.servers.clear()

    def compare(self, best: ServerSettings, challenger: ServerSettings) -> list[float]:
        """Paired ratios of new tokens/s, the challenger's over the best one's."""
        side_by_side = self._room_for_two(best)
        rates: dict[ServerSettings, list[float]] = {best: [], challenger: []}
        for one in (best, challenger) if not side_by_side else ():
            self._keep_only({one})
            rates[one] = [self._rate(one) for _ in range(self.pairs)]
        if side_by_side:
            self._keep_only({best})
            self.start(best)
            try:
                self.start(challenger)
                for pair in range(self.pairs):
                    for one in (best, challenger) if pair % 2 else (challenger, best):
                        rates[one].append(self._rate(one))
            finally:
                self._keep_only({best, challenger})
        ratios = [theirs / ours for ours, theirs in zip(rates[best], rates[challenger], strict=True)]
        self._keep_only({challenger if statistics.median(ratios) > MARGIN else best})
        return ratios

    def _room_for_two(self, settings: ServerSettings) -> bool:
        if resolve(self.model, settings).device != "cpu":
            return False  # an engine takes the whole GPU
        if settings in self.servers:
            return hardware.available_memory() > SERVER_GIB << 30
        return hardware.available_memory() > 2 * SERVER_GIB << 30

    def _keep_only(self, wanted: set[ServerSettings]) -> None:
        for settings in [known for known in self.servers if known not in wanted]:
            self.servers.pop(settings)[1].close()

    def start(self, settings: ServerSettings) -> VllmServer:
        """The server with these settings, started and warm."""
        if settings not in self.servers:
            stack = contextlib.ExitStack()
            server = VllmServer(self.model, settings, log=self.log, restarts=0)
            stack.enter_context(server)
            self.servers[settings] = (server, stack)
            self._warm(server)
        return self.servers[settings][0]

    def _warm(self, server: VllmServer) -> None:
        seqs = server.launch.max_num_seqs * server.launch.copies
        rate = _run(server, list(self._work(seqs)))
        if not self.requests:
            # The same work for all: about `round_s` of it for the first, and enough to fill the engine twice.
            self.requests = max(2 * seqs, round(rate * self.round_s / NEW_TOKENS))

    def _rate(self, settings: ServerSettings) -> float:
        server = self.start(settings)
        return _run(server, list(self._work(self.requests)))

    def _work(self, count: int) -> Iterator[Request]:
        """Requests as a paraphrase makes them, styles of a document together; no two rounds share a prefix."""
        self.rounds += 1
        made = 0
        while True:
            for text in self.texts:
                tokens = self.builder.tokenizer.encode(f"Notes {self.rounds}.{made}\n\n{text}")[:700]
                for instruction in self.instructions:
                    if made >= count:
                        return
                    yield Request(f"{made}", self.builder.join(tokens, instruction), _SAMPLING, made)
                    made += 1


def _run(server: VllmServer, requests: list[Request]) -> float:
    """New tokens/s of these requests."""
    new = 0

    def on_done(request: Request, outcome: object) -> None:
        nonlocal new
        if not isinstance(outcome, Completion):
            raise UserError(f"the server failed on a request: {outcome.detail}", where=server.log)
        new += outcome.completion_tokens

    async def work() -> None:
        async with Client(server.endpoint, window=server.launch.window, patience_s=60, alive=server.check) as client:
            await generate(client, requests, on_done)

    began = time.perf_counter()
    asyncio.run(work())
    return new / (time.perf_counter() - began)
