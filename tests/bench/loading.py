"""How fast documents and tokens come out, how soon reading goes on, and what tokenising costs.

    python -m tests.bench.loading [documents|tokens|resume|tokenize|memory ...]

Documents: our streaming dataset and `datasets`' own streaming of the same JSON lines, in turns. Tokens: blocks of
2,048 from token shards, one worker. Resume: from a state after a million documents to the next document. Tokenise: ours
and Datatrove's DocumentTokenizer behind its JsonlReader, with the same tokenizer, in turns. Memory: peaks of a fresh
process at one and at twenty times the corpus, with windows of 1 MB, so that even the small one has several. What must
be done once (counting the blocks of a plain corpus, loading a tokenizer) is done before the clock starts.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import re
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from tests.bench.reader_writer import make_corpus

LENGTH = 2_048


Spent = tuple[float, float]  # seconds on the clock, and of processor, which other work on the machine disturbs less


def pairs(ours: Callable[[], object], theirs: Callable[[], object], rounds: int) -> list[tuple[Spent, Spent]]:
    """What runs in turns took, ours and theirs."""
    found = []
    for number in range(rounds):
        took: dict[str, Spent] = {}
        for name, function in (("ours", ours), ("theirs", theirs))[:: 1 if number % 2 else -1]:
            began, began_cpu = time.perf_counter(), time.process_time()
            function()
            took[name] = (time.perf_counter() - began, time.process_time() - began_cpu)
        found.append((took["ours"], took["theirs"]))
    return found


def tell(what: str, found: list[tuple[Spent, Spent]], amount: float, unit: str) -> None:
    """Print the rate of ours, and how many times theirs it is, by the clock and by processor time."""
    ratios = [[theirs[i] / ours[i] for ours, theirs in found] for i in (0, 1)]
    rate = amount / statistics.median(ours[0] for ours, _ in found)
    spread = " and ".join(f"x{statistics.median(one):.2f} ({min(one):.2f}-{max(one):.2f})" for one in ratios)
    print(f"{what:<28} {rate:>14,.0f} {unit}/s, by the clock and by processor: {spread}", flush=True)


def bench_documents(folder: Path, documents: int, rounds: int) -> None:
    import datasets

    import derivedata

    corpus = make_corpus(folder / "corpus", documents, "jsonl.zst").parent
    load_corpus = derivedata.load_corpus  # imported before the clock starts
    began = time.perf_counter()
    load_corpus(str(corpus), streaming=True)
    print(f"counting the corpus once: {time.perf_counter() - began:.2f} s for {documents:,} documents")

    def ours() -> None:
        assert sum(1 for _ in load_corpus(str(corpus), streaming=True)) == documents

    def theirs() -> None:
        files = str(corpus / "*.jsonl.zst")
        stream = datasets.load_dataset("json", data_files=files, split="train", streaming=True)
        assert sum(1 for _ in stream) == documents

    tell("documents, datasets' own", pairs(ours, theirs, rounds), documents, "documents")


def token_blocks(folder: Path, tokens: int):
    """Blocks of made-up token shards, documents of about 500 tokens."""
    from derivedata.corpus.packing import TokenBlocks
    from derivedata.corpus.token_files import TokenFile, TokenReader
    from derivedata.store.paths import Folder

    draw = np.random.default_rng(0)
    each, files = tokens // 4, []
    for number in range(4):
        ids = draw.integers(1, 50_000, each).astype("<u2")
        ids[draw.integers(0, each, each // 500)] = 0
        ids.tofile(folder / f"{number}.npy")
        files.append(TokenFile(path=f"{number}.npy", tokens=each))
    reader = TokenReader(Folder(folder), files, np.dtype("<u2"))
    return TokenBlocks(reader, fingerprint="x", sequence_length=LENGTH, eos=0, rank=0, world=1)


def bench_tokens(folder: Path, tokens: int, rounds: int) -> None:
    blocks, rates = token_blocks(folder, tokens), []
    for _ in range(rounds):
        began = time.perf_counter()
        count = sum(1 for _ in blocks)
        rates.append(count * LENGTH / (time.perf_counter() - began))
    spread = f"({min(rates):,.0f}-{max(rates):,.0f})"
    print(f"{'token blocks':<28} {statistics.median(rates):>14,.0f} tokens/s {spread}")


def bench_resume(folder: Path, documents: int) -> None:
    from derivedata.corpus.blocks import open_blocks
    from derivedata.corpus.datasets import as_dataset
    from derivedata.corpus.stream import BlockStream

    corpus = make_corpus(folder / "corpus", documents, "jsonl.zst").parent
    # The order of a virtual repeat: as many epochs as make a good million.
    stream = BlockStream(open_blocks([str(corpus)]), seed=1, epochs=1_200_000 // documents + 1)
    ends = np.cumsum([stream.count(window) for window in range(stream.windows)])
    window = int(np.searchsorted(ends, 1_000_000, side="right"))
    offset = 1_000_000 - int(ends[window - 1])
    fresh = as_dataset(stream, streaming=True)
    state = fresh.state_dict()
    state["examples_iterable"] |= {"shard_idx": window, "shard_example_idx": offset}
    seconds = []
    for _ in range(5):
        again = as_dataset(stream, streaming=True)
        began = time.perf_counter()
        again.load_state_dict(state)
        found = next(iter(again))
        seconds.append(time.perf_counter() - began)
        assert found["uid"] == stream.read(window)[offset].uid
    told = f"{statistics.median(seconds):.2f} s ({min(seconds):.2f}-{max(seconds):.2f})"
    print(f"going on after 1,000,000 of {stream.documents:,} documents: {told}")


def bench_tokenize(folder: Path, documents: int, rounds: int, tokenizer: str) -> None:
    from datatrove.pipeline.readers import JsonlReader
    from datatrove.pipeline.tokens import DocumentTokenizer

    from derivedata.corpus.stream import open_stream
    from derivedata.pipelines.token_shards import TokenizerOf, TokenizeStage, plan_spans

    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    corpus = make_corpus(folder / "corpus", documents, "jsonl.zst").parent
    stream = open_stream(str(corpus))
    eos = "<|endoftext|>"
    named = TokenizerOf(folder=tokenizer, name="smollm2-135m", eos=eos, eos_id=0)

    spans = plan_spans(stream, 10**12)
    stages = [
        TokenizeStage(str(folder / f"ours-{number}"), stream, spans, named=named, format="nanotron")
        for number in range(rounds)
    ]
    steps = [
        DocumentTokenizer(
            str(folder / f"theirs-{number}"), f"{tokenizer}/tokenizer.json", eos_token=eos, shuffle_documents=False,
            batch_size=1_000,
        )
        for number in range(rounds)
    ]  # fmt: skip
    for step in (*stages, *steps):
        assert step.tokenizer  # loaded before the clock starts, on both sides
    to_do = {"ours": iter(stages), "theirs": iter(steps)}

    def ours() -> None:
        list(next(to_do["ours"]).run())

    def theirs() -> None:
        next(to_do["theirs"]).run(JsonlReader(str(corpus), compression="zstd", doc_progress=False).run())

    found = pairs(ours, theirs, rounds)
    one, their_file = (sorted(folder.glob(pattern))[0] for pattern in ("ours-*/tokens/*.ds", "theirs-*/*.ds"))
    assert one.read_bytes() == their_file.read_bytes(), "the same tokens"
    tell("tokenise, DocumentTokenizer", found, one.stat().st_size // 2, "tokens")


def bench_memory(folder: Path, documents: int) -> None:
    for name in ("documents", "tokenize", "count"):
        peaks = []
        for times in (1, 20):
            corpus = folder / f"{name}-{times}"
            make_corpus(corpus, documents * times, "jsonl.zst")
            with multiprocessing.get_context("spawn").Pool(1) as pool:
                peaks.append(pool.apply(_peak, (name, str(corpus), str(folder / f"{name}-out-{times}"))))
        print(
            f"peak of {name:<10} at 1x and 20x: {peaks[0]:.0f} and {peaks[1]:.0f} MB ({peaks[1] / peaks[0] - 1:+.1%})"
        )


def _peak(name: str, corpus: str, output: str) -> float:
    """Peak resident MB of this fresh process after the work."""
    import derivedata
    from derivedata.corpus.stream import BlockStream
    from tests.tiny_model import write_tiny_model

    BlockStream.__init__.__kwdefaults__["window_bytes"] = 1_000_000
    if name == "documents":
        for _ in derivedata.load_corpus(corpus, streaming=True):
            pass
    else:
        tokenizer = str(write_tiny_model(Path(f"{output}-model") / "tiny"))
        if name == "tokenize":
            from derivedata.pipelines.tokenize import TokenizeOptions, tokenize_corpus

            tokenize_corpus(
                TokenizeOptions(corpus=(corpus,), output=output, tokenizer=tokenizer, shard_bytes=20_000_000)
            )
        else:
            from derivedata.pipelines.count import count_tokens

            count_tokens([corpus], tokenizer, output=output)
    [peak] = re.findall(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    return int(peak) / 1024


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("parts", nargs="*", default=["documents", "tokens", "resume", "tokenize", "memory"])
    parser.add_argument("--documents", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args(argv)
    tokenizer = ""
    if "tokenize" in options.parts:
        from derivedata.generation.model import resolve_tokenizer

        tokenizer = str(resolve_tokenizer("smollm2-135m").path)  # before the cache is another one
    with tempfile.TemporaryDirectory() as cache:
        os.environ["DERIVEDATA_CACHE"] = cache
        for part in options.parts:
            with tempfile.TemporaryDirectory() as name:
                folder = Path(name)
                if part == "documents":
                    bench_documents(folder, options.documents, options.rounds)
                elif part == "tokens":
                    bench_tokens(folder, 100_000_000, options.rounds)
                elif part == "resume":
                    bench_resume(folder, options.documents)
                elif part == "tokenize":
                    bench_tokenize(folder, options.documents, options.rounds, tokenizer)
                else:
                    bench_memory(folder, max(options.documents // 10, 1_000))


if __name__ == "__main__":
    main()
