"""Measures the engine half: how full the server is kept, its rate against vllm.LLM.chat, prompt order, settings.

    python -m tests.bench.engine full --pairs 5       occupancy, and new tokens/s of server and client against LLM.chat
    python -m tests.bench.engine rollouts --pairs 5   the same for difficulty: 16 samples of each prompt, a seed each
    python -m tests.bench.engine order --pairs 3      document first against instruction first
    python -m tests.bench.engine settings             block size, threads, speculation, each against the default
    python -m tests.bench.engine report               what all runs so far say

Each pair is measured back to back in one run, and added to a file (--results), so that a run can be done in parts.
The sides of a pair differ in one thing. Starts are not counted. Nothing is read from the prefix cache of an earlier
round: each round has documents of its own.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from derivedata.generation.client import Client, Completion, Request, Sampling, generate
from derivedata.generation.launch import ServerSettings
from derivedata.generation.model import resolve_model
from derivedata.generation.prompt import PromptBuilder
from derivedata.generation.server import VllmServer
from derivedata.generation.tokenizer import load_tokenizer
from tests.bench.documents import INSTRUCTIONS, documents

NEW_TOKENS = 64
STYLES = tuple(INSTRUCTIONS.values())
SAMPLING = Sampling(
    max_tokens=NEW_TOKENS, min_tokens=NEW_TOKENS, ignore_eos=True, temperature=0.7, top_p=0.95, top_k=50
)


@dataclass
class Round:
    """One measured run of a list of requests."""

    tokens_per_second: float
    seconds: float
    requests: int
    load: float  # the machine's load average just before
    occupancy: float | None  # share of samples with max_num_seqs requests running, see `occupancy`
    starved: float | None  # share of samples in which the engine could have run more and nobody was waiting
    samples: int
    hits: int | None = None  # prompt tokens found in the prefix cache


class Sampler(threading.Thread):
    """Reads /metrics every half second, with the number of requests done at that moment."""

    def __init__(self, server: VllmServer):
        super().__init__(daemon=True)
        self.server, self.done, self.halt = server, 0, threading.Event()
        self.samples: list[tuple[int, int, int]] = []

    def run(self) -> None:
        due = time.monotonic()
        while not self.halt.is_set():
            done = self.done
            metrics = self.server.metrics()
            self.samples.append((done, metrics.running, metrics.waiting))
            due += 0.5
            self.halt.wait(max(0.0, due - time.monotonic()))


def occupancy(samples: list[tuple[int, int, int]], full: int, requests: int) -> tuple[float | None, float | None, int]:
    """How full an engine was kept, from first full until fewer requests remain than make it full.

    vLLM sets its gauges after a step, when the finished requests have left and their successors have not come in yet.
    So during each step that lets requests in, most of its time prefill, the gauge shows the gap before; an engine that
    is given all requests at once shows it as well. What a client can be blamed for is a gap with nobody waiting.

    Args:
        samples: requests done, running and waiting, at each moment.
        full: max_num_seqs.
        requests: how many there are in all.

    Returns:
        Share of samples with `full` running; share with a gap that the waiting could not fill; number of samples.
    """
    kept = [(running, waiting) for done, running, waiting in samples if requests - done >= full]
    while kept and kept[0][0] < full:
        kept.pop(0)
    if not kept:
        return None, None, 0
    gaps = sum(running + waiting < full for running, waiting in kept)
    return sum(running == full for running, _ in kept) / len(kept), gaps / len(kept), len(kept)


async def _generate(server: VllmServer, requests: list[Request], window: int, sampler: Sampler) -> int:
    new = 0

    def on_done(request: Request, outcome: object) -> None:
        nonlocal new
        if not isinstance(outcome, Completion):
            raise RuntimeError(f"{request.key}: {outcome}")
        sampler.done += 1
        new += outcome.completion_tokens

    async with Client(server.endpoint, window=window, alive=server.check) as client:
        await generate(client, requests, on_done)
    return new


def serve_round(server: VllmServer, make: object, window: int) -> Round:
    """Measure `make()` (which builds the requests: tokenising counts) through the server."""
    load, before, sampler = os.getloadavg()[0], server.metrics(), Sampler(server)
    sampler.start()
    began = time.perf_counter()
    requests = make()
    new = asyncio.run(_generate(server, requests, window, sampler))
    seconds = time.perf_counter() - began
    sampler.halt.set()
    sampler.join()
    after = server.metrics()
    full = occupancy(sampler.samples, server.launch.max_num_seqs, len(requests))
    return Round(new / seconds, seconds, len(requests), load, *full, after.prefix_hits - before.prefix_hits)


class Offline:
    """`vllm.LLM` in a process of its own with the server's settings; idle between rounds."""

    def __init__(self, server: VllmServer, log: Path):
        self.full, environment = server.launch.max_num_seqs, os.environ | server.launch.environment
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.bench.offline", *server.launch.arguments],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log.open("ab"),
            text=True,
        )
        self._answer()

    def round(self, texts: list[str], seeds: list[int]) -> Round:
        load = os.getloadavg()[0]
        self.process.stdin.write(json.dumps({"texts": texts, "seeds": seeds, "sampling": asdict(SAMPLING)}) + "\n")
        self.process.stdin.flush()
        answer = self._answer()
        full = occupancy(answer["samples"], self.full, len(texts))
        return Round(answer["tokens"] / answer["seconds"], answer["seconds"], len(texts), load, *full)

    def _answer(self) -> dict:
        for line in self.process.stdout:
            if line.startswith("@"):
                return json.loads(line[1:])
        raise RuntimeError("vllm.LLM ended")

    def close(self) -> None:
        self.process.stdin.close()
        self.process.wait()


class Bench:
    """Model, prompts and the results file."""

    def __init__(self, options: argparse.Namespace):
        self.options = options
        self.model = resolve_model(options.model, progress=_say)
        self.builder = PromptBuilder(load_tokenizer(self.model.path))
        self.folder = Path(tempfile.mkdtemp(prefix="derivedata-bench-"))

    def server(self, **settings: object) -> VllmServer:
        fixed = ServerSettings(max_num_seqs=self.options.max_num_seqs, threads=self.options.threads)
        chosen = replace(fixed, **settings)
        return VllmServer(self.model, chosen, log=self.folder / f"vllm-{time.monotonic_ns()}.log", progress=_say)

    def documents(self, seed: int, low: int, high: int, count: int | None = None) -> list[str]:
        return documents(self.builder.tokenizer, count or self.options.documents, seed, low=low, high=high)

    def requests(
        self, texts: list[str], seed: int, asked: Sequence[str] = STYLES, *, first: bool = True
    ) -> list[Request]:
        """Each text with each of the instructions that are `asked`, the document first or the instruction."""
        draw, made = random.Random(seed), []
        for text in texts:
            ids = self.builder.tokenizer.encode(text)
            for instruction in asked:
                prompt = self.builder.join(ids, instruction) if first else self.builder.build(instruction, text)
                made.append(Request(str(len(made)), prompt, SAMPLING, draw.getrandbits(63)))
        return made

    def record(self, part: str, **what: object) -> None:
        row = {"part": part, "at": time.strftime("%F %T"), **what}
        row = {key: asdict(value) if isinstance(value, Round) else value for key, value in row.items()}
        self.options.results.parent.mkdir(parents=True, exist_ok=True)
        with self.options.results.open("a") as file:
            file.write(json.dumps(row) + "\n")
        print(json.dumps(row), flush=True)

    def warm(self, server: VllmServer) -> None:
        serve_round(server, lambda: self.requests(self.documents(0, 50, 100)[:8], 0), self.options.window)

    def full(self) -> None:
        """Paraphrase: four styles of a document."""
        self._against_chat("full", STYLES, self.options.documents)

    def rollouts(self) -> None:
        """Difficulty: sixteen samples of a problem, as many requests in all."""
        self._against_chat("rollouts", STYLES[:1] * 16, max(1, self.options.documents // 4))

    def _against_chat(self, part: str, asked: Sequence[str], count: int) -> None:
        """Server and client against LLM.chat: the same prompts, seeds and settings, taking turns in going first."""
        with self.server() as server:
            offline = Offline(server, self.folder / "offline.log")
            self.warm(server)
            for pair in range(self.options.pairs):
                seed = random.randrange(1 << 30)
                texts = self.documents(seed, 100, 500, count)
                seeds = [request.seed for request in self.requests(texts, seed, asked)]
                users = [f"{text}\n\n{instruction}" for text in texts for instruction in asked]

                def ours(texts=texts, seed=seed) -> Round:
                    return serve_round(server, lambda: self.requests(texts, seed, asked), self.options.window)

                def theirs(users=users, seeds=seeds) -> Round:
                    return offline.round(users, seeds)

                if pair % 2:
                    reference, served = theirs(), ours()
                else:
                    served, reference = ours(), theirs()
                ratio = served.tokens_per_second / reference.tokens_per_second
                self.record(part, server=served, llm_chat=reference, ratio=ratio)
            offline.close()

    def order(self) -> None:
        """Document first against instruction first, 300-token documents; and the prefix cache's hits."""
        with self.server() as server:
            self.warm(server)
            block = int(server.launch.arguments[server.launch.arguments.index("--block-size") + 1])
            for pair in range(self.options.pairs):
                seed = random.randrange(1 << 30)
                texts = self.documents(seed, 300, 300)
                rounds = {}
                for first in (True, False) if pair % 2 else (False, True):
                    made = self.requests(texts, seed, first=first)
                    rounds[first] = serve_round(server, lambda made=made: made, self.options.window)
                possible = possible_hits([request.prompt for request in self.requests(texts, seed)], block)
                self.record(
                    "order",
                    document_first=rounds[True],
                    instruction_first=rounds[False],
                    ratio=rounds[True].tokens_per_second / rounds[False].tokens_per_second,
                    hit_share=rounds[True].hits / possible,
                )

    def settings(self) -> None:
        """Other settings against the default ones, each pair on the same documents."""
        variants: dict[str, dict] = {
            "default": {},
            "block-128": {"block_size": 128},
            "block-16": {"block_size": 16},
            "threads-2": {"threads": 2},
            "compiled": {"eager": False},
            "batched-8192": {"extra": (("max-num-batched-tokens", "8192"),)},
            "ngram": {
                "extra": (
                    ("speculative-config", '{"method":"ngram","num_speculative_tokens":4,"prompt_lookup_max":4}'),
                )
            },
        }
        names = self.options.variants.split(",") if self.options.variants else list(variants)
        with contextlib.ExitStack() as stack:
            # All stand by at once, 3 GB each, so that each comparison is made within a minute or two.
            servers = {name: stack.enter_context(self.server(**variants[name])) for name in ["default", *names]}
            for server in servers.values():
                self.warm(server)
            for _ in range(self.options.pairs):
                seed, rounds = random.randrange(1 << 30), {}
                requests = self.requests(self.documents(seed, 100, 500), seed)
                for name in random.sample(list(servers), len(servers)):
                    rounds[name] = serve_round(servers[name], lambda made=requests: made, self.options.window)
                for name in names:
                    ratio = rounds[name].tokens_per_second / rounds["default"].tokens_per_second
                    self.record("settings", variant=name, default=rounds["default"], other=rounds[name], ratio=ratio)

    def report(self) -> None:
        rows = [json.loads(line) for line in self.options.results.read_text().splitlines()]
        parts: dict[str, list[dict]] = {}
        for row in rows:
            parts.setdefault(f"{row['part']} {row.get('variant', '')}".strip(), []).append(row)
        for part, members in sorted(parts.items()):
            ratios = sorted(row["ratio"] for row in members)
            line = f"{part}: ratio median {statistics.median(ratios):.3f} of {len(ratios)}"
            line += f" ({ratios[0]:.3f} to {ratios[-1]:.3f})"
            if "server" in members[0]:
                shares = [row["server"]["occupancy"] for row in members]
                line += f"; full in {statistics.median(shares):.3f} of samples"
                line += f", LLM.chat in {statistics.median(row['llm_chat']['occupancy'] for row in members):.3f}"
                line += f"; starved in {max(row['server']['starved'] for row in members):.3f}"
            if "hit_share" in members[0]:
                line += f"; prefix hits {min(row['hit_share'] for row in members):.3f} of those possible"
            print(line)


def possible_hits(prompts: list[list[int]], block: int) -> int:
    """Tokens that a prefix cache of whole blocks can find at best when the prompts come in this order, once each."""
    seen: set[tuple[int, ...]] = set()
    hits = 0
    for prompt in prompts:
        whole = (len(prompt) - 1) // block  # the last token is always computed
        matched = True
        for number in range(1, len(prompt) // block + 1):
            prefix = tuple(prompt[: number * block])
            matched = matched and prefix in seen
            hits += block * (matched and number <= whole)
            seen.add(prefix)
    return hits


def _say(line: str) -> None:
    print(f"\r{line}   ", end="", file=sys.stderr, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("part", choices=("full", "rollouts", "order", "settings", "report"))
    parser.add_argument("--model", help="default: the embedded one")
    parser.add_argument("--documents", type=int, default=48, help="each in four styles")
    parser.add_argument("--pairs", type=int, default=1)
    parser.add_argument("--window", type=int, default=64)
    parser.add_argument("--max-num-seqs", type=int, default=32)
    parser.add_argument("--threads", type=int, default=1, help="of the engine")
    parser.add_argument("--variants", help="of `settings`, comma-separated; default all")
    parser.add_argument("--results", type=Path, default=Path("build/bench-engine.jsonl"))
    options = parser.parse_args()
    if options.part == "report":
        Bench.report(argparse.Namespace(options=options))
        return
    getattr(Bench(options), options.part)()


if __name__ == "__main__":
    main()
