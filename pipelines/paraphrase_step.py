"""Paraphrasing between your own Datatrove steps: takes the documents of the step before, yields the derived ones.

    LocalPipelineExecutor([reader, filter, Paraphrase("derived", styles=("faq",), endpoints=("local",)), writer]).run()

Each task keeps what reached it (`OUT/source/<rank>.jsonl.zst`) and makes an output of its own (`OUT/derived/<rank>`),
with ledger, journal, manifest and books. `pipelines/paraphrase.md` says what is exactly once and what that asks of the
steps before.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from datatrove.data import Document as DatatroveDocument
from datatrove.pipeline.base import PipelineStep

from derivedata.corpus.files import corpus_files
from derivedata.corpus.reader import RejectedRow, read_rows
from derivedata.corpus.writer import ShardWriter
from derivedata.errors import UserError
from derivedata.pipelines.paraphrase_options import ParaphraseOptions
from derivedata.pipelines.run import ParaphraseJob
from derivedata.pipelines.serving import Serve, Silence
from derivedata.store.paths import Folder

TASKS = "step.json"
# Dolma's own fields, which Datatrove's readers put into the metadata.
_DOLMA = ("source", "added", "created")


class Paraphrase(PipelineStep):
    """Rewrites the documents that reach it.

    Args:
        output: folder or URL of everything the step makes.
        serve: gives the server, as for `paraphrase_corpus`; by default the endpoints of the options, or a server that
            each task starts for itself (so with several tasks at a time: endpoints).
        options: fields of `ParaphraseOptions` but for corpus, output, tasks and workers.
    """

    name = "✍ Paraphrase"
    type = "🧬 - DERIVE"

    def __init__(self, output: str, *, serve: Serve | None = None, **options: Any):
        super().__init__()
        if taken := sorted({"corpus", "tasks", "workers"} & set(options)):
            raise UserError("is settled by the pipeline the step stands in", where=taken[0])
        self.output, self.serve, self.options = output, serve, options
        self._options("", "")  # what is wrong with them shows before any task runs

    def run(self, data: Any = None, rank: int = 0, world_size: int = 1) -> Iterator[DatatroveDocument]:
        folder = Folder(self.output)
        self._same_tasks(folder, world_size)
        path = f"source/{rank:05d}.jsonl.zst"
        if not self._keep(folder, path, data or ()):
            return
        output = folder.url_of(f"derived/{rank:05d}")
        job = ParaphraseJob(self._options(folder.url_of(path), output), Silence(), self.serve)
        job.inline = True  # the task that this step stands in is all the executor there is
        with self.track_time("document"):
            job.run()
        for file in corpus_files([output]):
            for row in read_rows(file):
                if not isinstance(row, RejectedRow):
                    self.stat_update("derived")
                    yield DatatroveDocument(text=row.text, id=str(row.id), metadata=_metadata(row.to_dolma()))

    def _options(self, corpus: str, output: str) -> ParaphraseOptions:
        return ParaphraseOptions(corpus=(corpus,), output=output, **self.options)

    @staticmethod
    def _same_tasks(folder: Folder, world_size: int) -> None:
        told = {"tasks": world_size}
        if not folder.create(TASKS, json.dumps(told).encode()) and (was := json.loads(folder.read(TASKS))) != told:
            raise UserError(
                f"the output was made by {was['tasks']} tasks, which shared the documents in another way",
                where=folder.url,
                value=world_size,
                remedy="run as many tasks, or name another output",
            )

    def _keep(self, folder: Folder, path: str, data: Iterable[DatatroveDocument]) -> int:
        """Write down what reached this task, or see that it is what reached it before; returns how many documents."""
        count = 0
        with folder.scratch() as scratch:
            with ShardWriter(Path(scratch) / "source.jsonl.zst") as writer:
                for document in data:
                    writer.write(_row(document))
                    count += 1
                    self.stat_update("documents")
            shard = writer.close()
            if not folder.create_from(path, shard.path):
                with folder.open(path) as file:
                    if hashlib.file_digest(file, "sha256").hexdigest() != shard.sha256:
                        raise UserError(
                            "other documents have reached this task than in an earlier run",
                            where=folder.url_of(path),
                            remedy="the steps before must give the same ones in the same order: mend that, or name "
                            "another output",
                        )
        return count


def _row(document: DatatroveDocument) -> dict[str, Any]:
    """A document as a Dolma row."""
    metadata = dict(document.metadata)
    own = {name: metadata.pop(name) for name in _DOLMA if isinstance(metadata.get(name), str)}
    return {"id": document.id, "text": document.text, **own, "metadata": metadata}


def _metadata(row: dict[str, Any]) -> dict[str, Any]:
    return {**{name: row[name] for name in _DOLMA if row.get(name) is not None}, **(row.get("metadata") or {})}
