"""Balancing over servers of unequal speed, and the whole job against datatrove's InferenceRunner on one server.

    python -m tests.bench.endpoints balance              three fake servers, each in a process of its own
    python -m tests.bench.endpoints peers                the real model and server (minutes)

Each contestant of `peers` gets documents of its own, of the same lengths, so that nobody finds another's prefixes in
the cache; the order is drawn anew in each round. All ask for the same styles and sampling, with as many in flight.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
import sys
import tempfile
import time
import types
from pathlib import Path

from derivedata.generation.client import Client, Completion, Request, Sampling, generate
from derivedata.generation.launch import ServerSettings
from derivedata.generation.model import resolve_model
from derivedata.generation.request import Endpoint
from derivedata.generation.server import VllmServer
from derivedata.generation.tokenizer import load_tokenizer
from tests.bench.documents import INSTRUCTIONS, documents
from tests.fake_server import fake_server_process

SPEEDS = (40.0, 80.0, 160.0)  # new tokens a second of one sequence; a fake server runs eight of them
SEQUENCES, NEW_TOKENS, GROUP = 8, 64, 4
WINDOW = 12  # in flight at each: the tail in which a slow server works alone is as long as this makes it
SAMPLING = Sampling(max_tokens=NEW_TOKENS, min_tokens=NEW_TOKENS, ignore_eos=True)
JOB_TOKENS, IN_FLIGHT = 96, 64


def rate(urls: list[str], seconds: float) -> tuple[float, float]:
    """Requests a second of a run that takes about so long: over the whole of it, and until the feed ends."""
    endpoints = [Endpoint(url=url, model="fake") for url in urls]
    began, ended, done, early = time.perf_counter(), 0.0, 0, 0

    def feed():
        nonlocal ended, early
        number = 0
        while time.perf_counter() - began < seconds:
            for style in range(GROUP):
                yield Request(f"{number}/{style}", [number, style], SAMPLING, number, group=str(number))
            number += 1
        ended, early = time.perf_counter() - began, done

    def on_done(request: Request, outcome: object) -> None:
        nonlocal done
        done += isinstance(outcome, Completion)

    async def run() -> None:
        async with Client(endpoints, window=WINDOW * len(urls)) as client:
            await generate(client, feed(), on_done)

    asyncio.run(run())
    return done / (time.perf_counter() - began), early / ended


def balance(options: argparse.Namespace) -> None:
    """Three servers of unequal speed together, against the sum of what each does alone."""
    with contextlib.ExitStack() as stack:
        urls = [
            stack.enter_context(
                fake_server_process("--max-num-seqs", str(SEQUENCES), "--tokens-per-second", str(speed))
            )
            for speed in SPEEDS
        ]
        load = os.getloadavg()[0]
        alone = [rate([url], options.seconds / 3)[1] for url in urls]
        whole, steady = rate(urls, options.seconds)
    told = {
        "alone": [round(one, 2) for one in alone],
        "together": round(whole, 2),
        "until the feed ends": round(steady, 2),
    }
    told |= {"ratio": round(whole / sum(alone), 3), "steady ratio": round(steady / sum(alone), 3), "load": load}
    print(json.dumps({"part": "balance", **told}), flush=True)


class Peers:
    """One server, three ways to have the same work done."""

    def __init__(self, options: argparse.Namespace, server: VllmServer, folder: Path):
        self.options, self.server, self.folder = options, server, folder
        self.tokenizer = load_tokenizer(server.model.path)
        self.styles = []
        for name, instruction in INSTRUCTIONS.items():
            sampling = f"{{temperature: 0.7, top_p: 0.95, top_k: 50, max_tokens: {JOB_TOKENS}}}"
            head = f"name: {name}-bench\nversion: 1\ndescription: What the bench asks for.\n"
            text = f"{head}instruction: {json.dumps(instruction)}\nsampling: {sampling}\n"
            (folder / f"{name}-bench.yaml").write_text(text)
            self.styles.append(str(folder / f"{name}-bench.yaml"))

    def corpus(self, name: str, seed: int, count: int) -> Path:
        """Documents of 300 tokens as one Dolma shard."""
        place = self.folder / name / "documents"
        place.mkdir(parents=True)
        texts = documents(self.tokenizer, count, seed, low=300, high=300)
        rows = [json.dumps({"id": f"{seed}-{number}", "text": text}) for number, text in enumerate(texts)]
        (place / "part.jsonl").write_text("\n".join(rows) + "\n")
        return place.parent

    def ours(self, corpus: Path) -> None:
        """`derivedata paraphrase --endpoint`, with everything it does: judging, journal, manifest, the probe."""
        from derivedata.pipelines.run import ParaphraseOptions, paraphrase_corpus

        options = ParaphraseOptions(
            corpus=(str(corpus),),
            output=str(corpus.parent / "derived"),
            styles=self.styles,
            endpoints=(self.server.endpoint.url,),
            concurrency=IN_FLIGHT,
            tokenizer=str(self.server.model.path),
        )
        paraphrase_corpus(options)

    def one_job_a_style(self, corpus: Path) -> None:
        """As FinePhrase was made: a job a style, the instruction first."""
        for name, instruction in INSTRUCTIONS.items():

            async def rollout(document, generate, instruction=instruction):
                return await generate(self._payload(f"{instruction}\n\n{document.text}"))

            self._runner(corpus, name, rollout, documents_at_once=IN_FLIGHT)

    def all_styles_at_once(self, corpus: Path) -> None:
        """Our order of prompts in its runner: document first, all styles of a document in one rollout function."""

        async def rollout(document, generate):
            asked = [generate(self._payload(f"{document.text}\n\n{words}")) for words in INSTRUCTIONS.values()]
            return [answer.text for answer in await asyncio.gather(*asked)]

        self._runner(corpus, "all", rollout, documents_at_once=IN_FLIGHT // len(INSTRUCTIONS))

    def _payload(self, text: str) -> dict:
        fields = {"temperature": 0.7, "top_p": 0.95, "top_k": 50, "max_tokens": JOB_TOKENS}
        return {"messages": [{"role": "user", "content": text}], "seed": random.getrandbits(31), **fields}

    def _runner(self, corpus: Path, name: str, rollout: object, *, documents_at_once: int) -> None:
        from datatrove.pipeline.inference.run_inference import InferenceConfig, InferenceRunner
        from datatrove.pipeline.readers import JsonlReader
        from datatrove.pipeline.writers import JsonlWriter

        config = InferenceConfig(
            server_type="endpoint",
            model_name_or_path=self.server.model.name,
            endpoint_url=self.server.endpoint.url,
            max_concurrent_generations=IN_FLIGHT,
            max_concurrent_documents=documents_at_once,
        )
        writer = JsonlWriter(str(corpus.parent / f"{name}-written"), compression=None)
        InferenceRunner(rollout, config, writer).run(JsonlReader(str(corpus / "documents")).run())
        written = sum(path.read_text().count("\n") for path in Path(writer.output_folder.path).glob("*.jsonl"))
        wanted = (corpus / "documents/part.jsonl").read_text().count("\n")
        if written != wanted:
            raise RuntimeError(f"{written} of {wanted} documents were written")

    def round(self, number: str, *, documents: int) -> None:
        """All contestants, one after the other."""
        contestants = [self.ours, self.one_job_a_style, self.all_styles_at_once]
        taken, tokens, load = {}, {}, os.getloadavg()[0]
        for contestant in random.sample(contestants, len(contestants)):
            name = contestant.__name__
            corpus = self.corpus(f"{number}-{name}/in", random.randrange(1 << 30), documents)
            before, began = self.server.metrics().generation_tokens, time.perf_counter()
            contestant(corpus)
            taken[name] = time.perf_counter() - began
            tokens[name] = self.server.metrics().generation_tokens - before
        speeds = {name: tokens[name] / taken[name] for name in taken}
        others = {name: round(speeds["ours"] / speeds[name], 3) for name in speeds if name != "ours"}
        told = {"seconds": {name: round(value, 1) for name, value in taken.items()}, "new_tokens": tokens}
        print(
            json.dumps({"part": "peers", "round": number, "load": load, **told, "ratio of tokens/s": others}),
            flush=True,
        )


def peers(options: argparse.Namespace) -> None:
    """The whole job on one real server, end to end."""
    from loguru import logger

    logger.remove()
    # datatrove imports it when it writes, and uses it for checkpoints alone, which are off here.
    sys.modules.setdefault("aiofiles", types.ModuleType("aiofiles"))
    from derivedata.generation import server as life

    # Its client sends no key to a server on this machine, so this one has none.
    life.secrets = types.SimpleNamespace(token_urlsafe=lambda size: "", token_hex=life.secrets.token_hex)
    program = (sys.executable, "-m", "tests.fake_server") if options.fake else life.VLLM
    with tempfile.TemporaryDirectory(prefix="derivedata-bench-") as name:
        folder, model = Path(name), resolve_model(options.model)
        settings = ServerSettings(max_num_seqs=32, threads=options.threads, context=4096)
        with VllmServer(model, settings, log=folder / "vllm.log", program=program) as server:
            contest = Peers(options, server, folder)
            contest.round("warm", documents=2)  # imports, first use of everything
            for number in range(options.rounds):
                contest.round(str(number), documents=options.documents)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("part", choices=("balance", "peers"))
    parser.add_argument("--seconds", type=float, default=90.0, help="of the balance")
    parser.add_argument("--documents", type=int, default=16, help="of each contestant, each in four styles")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--threads", type=int, default=1, help="of the engine")
    parser.add_argument("--model", help="default: the embedded one")
    parser.add_argument("--fake", action="store_true", help="the fake server in vLLM's place, to try the bench out")
    options = parser.parse_args()
    {"balance": balance, "peers": peers}[options.part](options)


if __name__ == "__main__":
    main()
