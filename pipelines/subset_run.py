"""Drives `derivedata subset`: counts the corpus and the tokens that are needed, and writes what each subset stands for.

From Python:

    from derivedata.pipelines.subset_run import SubsetOptions, take_subsets
    take_subsets(SubsetOptions(corpus=("corpus",), output="subsets", tokens=(100_000_000, 600_000_000)))
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal

import numpy as np

from derivedata.corpus.blocks import BLOCK_BYTES, Blocks
from derivedata.corpus.files import VIRTUAL
from derivedata.corpus.stream_virtual import SELECTED, write_virtual
from derivedata.corpus.windows import Selection
from derivedata.errors import UserError, refuse_below_one
from derivedata.pipelines.repeat_source import OrderingJob
from derivedata.pipelines.serving import Listener, Silence
from derivedata.pipelines.subset import KEY_SPACE, Counted, CountKeys, Cut, count_prefix, describe
from derivedata.store.fingerprint import RunConfig
from derivedata.store.paths import Folder

JOB = "subset"
HELD_OUT = "validation"
BYTES_PER_TOKEN = 4.0  # of text, about: only a first guess of how much to count


@dataclass(frozen=True, kw_only=True, slots=True)
class SubsetOptions:
    """What `derivedata subset` takes; see its --help."""

    corpus: Sequence[str]
    output: str
    tokens: Sequence[int]
    validation: float = 0.01
    seed: int = 0
    tokenizer: str | None = None
    tasks: int = 1
    workers: int | None = None
    max_bad_input: float = 0.05
    block_bytes: int = BLOCK_BYTES
    restart: bool = False

    def __post_init__(self) -> None:
        if not self.tokens or min(self.tokens) < 1:
            raise UserError("must be 1 or more", where="--tokens", value=str(list(self.tokens)))
        if not 0 <= self.validation < 1:
            raise UserError("must be a share below 1", where="--validation", value=self.validation)
        refuse_below_one(self, "tasks", "workers", "block_bytes")


@dataclass(frozen=True, kw_only=True, slots=True)
class Taken:
    """A subset that was taken: its folder, what was asked for (None: the held-out documents), and what it is."""

    folder: str
    wanted: int | None
    cut: Cut


def take_subsets(options: SubsetOptions, listener: Listener | None = None) -> tuple[list[Taken], str]:
    """Take nested subsets of a corpus; returns them, the smallest first, and the name of the tokenizer.

    Raises:
        UserError: in one line, whatever can be expected to go wrong.
    """
    return _Run(options, listener or Silence()).run()


def name_of(tokens: int) -> str:
    """The folder of a subset of so many tokens: 100M, 2.4B, 1234567."""
    for suffix, unit in (("T", 10**12), ("B", 10**9), ("M", 10**6), ("k", 10**3)):
        if tokens >= unit and len(text := format((Decimal(tokens) / unit).normalize(), "f")) <= 5:
            return text + suffix
    return str(tokens)


class _Run(OrderingJob):
    def __init__(self, options: SubsetOptions, listener: Listener):
        super().__init__(JOB, options.corpus, options.output, listener, tasks=options.tasks, workers=options.workers)
        self.options = options

    def run(self) -> tuple[list[Taken], str]:
        options = self.options
        self.find(refused=("repeat", "mix", "subset"))
        self.tokens = self.token_counts(options.tokenizer)
        config = RunConfig(
            identity={
                "job": JOB,
                "seed": options.seed,
                "validation": options.validation,
                "counted_with": self.tokens.name,
                "block_bytes": options.block_bytes,
            },
            extent={"corpus": self.places, "tokens": sorted(options.tokens)},
            execution={"tasks": self.tasks, "workers": self.workers},
        )
        with self.writing(restart=options.restart), self.recorded(config):
            if options.restart:
                for path in self.folder.names():
                    if path.endswith(f"/{VIRTUAL}"):
                        self.folder.remove_tree(path.partition("/")[0])
            blocks = self.count(block_bytes=options.block_bytes, max_bad_input=options.max_bad_input)
            return self._take(blocks), self.tokens.name

    def _take(self, blocks: Blocks) -> list[Taken]:
        options = self.options
        limit = KEY_SPACE - int(options.validation * KEY_SPACE)
        wanted = sorted(set(options.tokens))
        guess = 1.2 * wanted[-1] * BYTES_PER_TOKEN / max(1, int(blocks.table["bytes"].sum()))
        counted = count_prefix(
            self.folder,
            blocks.files,
            seed=options.seed,
            wanted=wanted[-1],
            limit=limit,
            share=min(1.0, guess),
            count=self._count_keys,
        )
        taken = [self._write(blocks, counted, counted.prefix(tokens), name_of(tokens), tokens) for tokens in wanted]
        if limit < KEY_SPACE:
            held_out = Selection(seed=options.seed, low=limit, high=KEY_SPACE)
            self._count_keys(held_out)
            counted = Counted(self.folder, blocks.files, [held_out])
            taken.append(self._write(blocks, counted, counted.cut(limit, KEY_SPACE), HELD_OUT, None))
            if not taken[-1].cut.documents:
                share = f"{options.validation:.3g} of {blocks.documents:,} documents"
                self.listener.say(f"no document is held out: {share} came to none; raise --validation")
        return taken

    def _count_keys(self, selection: Selection) -> None:
        share = (selection.high - selection.low) / KEY_SPACE
        with self.listener.track(f"counting tokens of {share:.1%} of the corpus", lambda: None):
            self.execute([CountKeys(self.files, self.output, self.tokens, selection)], "keys")

    def _write(self, blocks: Blocks, counted: Counted, cut: Cut, name: str, wanted: int | None) -> Taken:
        folder = Folder(self.folder.url_of(name))
        selected = io.BytesIO()
        np.save(selected, counted.by_block(blocks, cut))
        folder.replace(SELECTED, selected.getvalue())
        told = describe(
            cut,
            corpus=self.places,
            blocks=blocks.fingerprint,
            seed=self.options.seed,
            tokenizer=self.tokens.name,
        )
        write_virtual(folder, told)
        return Taken(folder=folder.url, wanted=wanted, cut=cut)
