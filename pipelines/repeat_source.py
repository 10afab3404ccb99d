"""What jobs that put a corpus in order share: which corpus, what counts its tokens, and counting it once."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator, Sequence
from typing import Any

from derivedata.corpus.blocks import Blocks, is_output
from derivedata.corpus.files import VIRTUAL, corpus_files
from derivedata.corpus.stream_virtual import absolute, planned_blocks, read_virtual
from derivedata.errors import UserError
from derivedata.pipelines.executor import run_locally
from derivedata.pipelines.repeat_tokens import Counted, Listed, TokenCounts, listed_tokenizer
from derivedata.pipelines.serving import Listener, check_output, recorded, start_over
from derivedata.pipelines.source import INVENTORY, TakeInventory, close_inventory, counted_files
from derivedata.store.fingerprint import RunConfig
from derivedata.store.lease import Lease
from derivedata.store.manifest import Manifest
from derivedata.store.paths import Folder
from derivedata.store.runs import new_run_id

ROOMS = ("documents", "rejected", "manifest", "plan", "ledger", "journal", "logs", "progress")
EMBEDDED = "smollm2-135m"
SOURCE = "plan/source.json"  # which corpus the order was made for


class OrderingJob:
    """A job on one output: it counts a corpus, and then makes an order of it.

    Args:
        job: its name in the run record.
        corpus, output: as the options have them.
        execution: tasks and workers.
    """

    def __init__(
        self, job: str, corpus: Sequence[str], output: str, listener: Listener, *, tasks: int, workers: int | None
    ):
        self.job, self.listener, self.output = job, listener, output
        self.folder, self.places = Folder(output), absolute(corpus)
        self.run_id = new_run_id()
        self.tasks, self.workers = tasks, min(workers or tasks, tasks)

    def find(self, *, refused: Sequence[str]) -> None:
        """Look at the corpus and the output; kinds of virtual corpora that make no sense here are `refused`."""
        for place in self.places:
            if (told := read_virtual(place)) is not None and told["kind"] in refused:
                raise UserError(f"is a {told['kind']} already", where=place, remedy="name the corpus it was made from")
        self.files = corpus_files(self.places)
        self.listed = self.places[0] if len(self.places) == 1 and is_output(self.places[0]) else None
        refuse_inside(self.output, self.places)
        check_output(self.folder, self.job, [file.url for file in self.files])

    def token_counts(self, tokenizer: str | None) -> TokenCounts:
        """What counts tokens: the manifest of the corpus where it can, else the tokenizer asked for."""
        if (found := self.listed_counts(tokenizer)) is not None:
            return found
        from derivedata.generation.model import resolve_tokenizer

        model = resolve_tokenizer(tokenizer or EMBEDDED)
        return Counted(str(model.path), model.name)

    def listed_counts(self, tokenizer: str | None) -> Listed | None:
        """The counts of the corpus's own manifest, where they are with the tokenizer asked for."""
        listed = listed_tokenizer(self.listed) if self.listed else None
        return Listed(self.listed, listed) if listed and tokenizer in (None, listed) else None

    @contextlib.contextmanager
    def recorded(self, config: RunConfig) -> Iterator[None]:
        """Keep the record of the run while it lasts."""
        with recorded(self.folder, config, self.run_id):
            yield

    @contextlib.contextmanager
    def writing(self, *, restart: bool) -> Iterator[None]:
        """Be the one who writes the output; on `restart` what it holds is thrown away."""
        with Lease(self.folder, self.run_id):
            if restart:
                clear(self.folder)
            yield

    def count(self, *, block_bytes: int, max_bad_input: float) -> Blocks:
        """The blocks of the corpus, counted where no manifest lists them; refused when they are others than before."""
        folder = self.folder
        if not self.listed and (not folder.exists(INVENTORY) or "input" not in Manifest(folder).books()):
            folder.remove(INVENTORY)
            step = TakeInventory(self.files, self.output, chunk_bytes=block_bytes, run_id=self.run_id)
            look = lambda: (counted_files(folder), len(self.files), "files")  # noqa: E731
            with self.listener.track("counting the corpus", look):
                self.execute([step], "inventory")
            close_inventory(folder, self.files)
        blocks = planned_blocks(folder, self.places)
        rejected = sum(blocks.rejected.values())
        rows, where = blocks.documents + rejected, ", ".join(self.places)
        reasons = ", ".join(f"{reason} {count:,}" for reason, count in blocks.rejected.items())
        told = f"; {rejected:,} of {rows:,} rows rejected ({reasons})" if rejected else ""
        self.listener.say(f"corpus: {blocks.documents:,} documents in {len(blocks):,} blocks{told}")
        if not blocks.documents:
            raise UserError("holds no document", where=where)
        if rejected > max_bad_input * rows:
            remedy = f"see {folder.url_of('rejected')}; raise --max-bad-input, or mend them and add --restart"
            raise UserError(f"{rejected:,} of {rows:,} rows are no documents ({reasons})", where=where, remedy=remedy)
        source = json.dumps({"blocks": blocks.fingerprint}).encode()
        if not folder.create(SOURCE, source) and folder.read(SOURCE) != source:
            remedy = "write to another output, or start over with --restart"
            raise UserError("the corpus is not what this output was started from", where=folder.url, remedy=remedy)
        return blocks

    def execute(self, steps: Sequence[Any], name: str) -> None:
        """Run Datatrove steps."""
        logging_dir = self.folder.url_of(f"logs/{self.run_id}/{name}")
        run_locally(steps, tasks=self.tasks, workers=self.workers, logging_dir=logging_dir)


def clear(folder: Folder) -> None:
    """Throw away what such a job left in its output."""
    folder.remove(VIRTUAL)
    start_over(folder, ROOMS)


def refuse_inside(output: str, places: Sequence[str]) -> None:
    """Raise UserError when an output would lie within the corpus it is made from: the next run would read it too."""
    if "://" in output:
        return
    target = os.path.realpath(output)
    for place in places:
        if "://" not in place and os.path.isdir(place) and f"{target}/".startswith(f"{os.path.realpath(place)}/"):
            raise UserError("the output lies within the corpus", where=output, remedy="name a folder beside it")
