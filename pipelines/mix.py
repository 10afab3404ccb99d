"""Mix corpora by target ratios: `derivedata mix SPEC.yaml -o MIX`.

A mix is an order over its sources; `MixStage`, the Datatrove step, writes it out where that is wanted. What a mixture
is made of, `mix_spec` says; what it gives, `mix_plan`; `mix_run` drives it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from datatrove.pipeline.base import PipelineStep

from derivedata.corpus.document import Document, document_uid
from derivedata.corpus.stream import Origin
from derivedata.corpus.stream_mix import MixStream, open_mix, source_blocks, source_folder
from derivedata.corpus.writer import ShardWriter
from derivedata.pipelines.derived import _as_string as as_string
from derivedata.pipelines.mix_documents import SourceDocuments
from derivedata.pipelines.mix_plan import Population
from derivedata.pipelines.repeat_splice import with_derivation
from derivedata.store.books import Books
from derivedata.store.ledger import Ledger
from derivedata.store.paths import Folder
from derivedata.store.tables import DOCUMENTS, Part, rows_to_table
from derivedata.store.units import Unit, missing

STRATEGY = STAGE = "mix"
DONE = "progress/mix"


class MixStage(PipelineStep):
    """Write the chunks of a mix that are missing, as tasks share them.

    Args:
        told: the mix as its `virtual.json` would say it.
        output: its folder.
        run_id: of the first run.
        format: of the shards.
        windows_per_shard: windows that are committed together.
    """

    name = "🥣 Mix"
    type = "🧬 - DERIVE"

    def __init__(self, *, told: dict[str, Any], output: str, run_id: str, format: str, windows_per_shard: int):
        super().__init__()
        self.told, self.output, self.run_id, self.format = told, output, run_id, format
        self.windows_per_shard = windows_per_shard

    @cached_property
    def folder(self) -> Folder:
        return Folder(self.output)

    @cached_property
    def stream(self) -> MixStream:
        return open_mix(self.output, self.told)

    @cached_property
    def tokens(self) -> dict[str, TokensByRow]:
        """Looks up the tokens of a document, by source."""
        return {
            told["source_name"]: TokensByRow(self.folder, number, told)
            for number, told in enumerate(self.told["sources"])
        }

    def windows(self, chunk: int) -> range:
        """The windows of a chunk."""
        return range(chunk * self.windows_per_shard, min(self.stream.windows, (chunk + 1) * self.windows_per_shard))

    def missing(self, ledger: Ledger) -> list[Unit]:
        """The units that are still to be written, by all ranks together."""
        committed: dict[int, list[Unit]] = {}
        for unit in ledger.committed():
            committed.setdefault(unit.chunk, []).append(unit)
        found = []
        for chunk in range(-(-self.stream.windows // self.windows_per_shard)):
            wanted = sum(self.stream.count(window) for window in self.windows(chunk))
            found += missing(committed.get(chunk, []), chunk=chunk, documents=wanted, kinds=(STRATEGY,), rewrites=1)
        return found

    def run(self, data: Any = None, rank: int = 0, world_size: int = 1) -> Iterator[Any]:
        if data:
            yield from data
        ledger, done = Ledger(self.folder), 0
        for unit in self.missing(ledger):
            if unit.chunk % world_size != rank:
                continue
            with self.track_time("unit"), self.folder.scratch() as scratch:
                ledger.commit(unit, self.part(unit, scratch))
            done += unit.documents
            self.stat_update("documents", value=unit.documents)
            self.folder.replace(f"{DONE}/{rank:05d}", str(done).encode())

    def part(self, unit: Unit, scratch: Path) -> Part:
        """What a unit puts into the output; the same bytes whoever makes it."""
        path = f"documents/{unit.name}.{self.format}"
        rows: list[dict[str, Any]] = []
        with ShardWriter(scratch / f"shard.{self.format}", format=self.format) as writer:
            for window in self.windows(unit.chunk):
                for document, origin in self.stream.read_with_origin(window):
                    tokens = self.tokens[origin.source].of(document)
                    writer.write(with_derivation(document.fields, self._derivation(document, origin)))
                    rows.append(self._row(document, origin, path, len(rows), tokens))
            made = writer.close()
        entry = made.entry(
            path,
            tokens=sum(row["tokens"] for row in rows),
            tokenizer=self.told["tokenizer"],
            strategy=STRATEGY,
            run_id=self.run_id,
            format=self.format,
        )
        books = Books(planned=unit.documents, accepted=made.documents)
        return Part(books=books, stage=STAGE, shards=[entry], tables={"documents": rows_to_table(rows, DOCUMENTS)})

    def _derivation(self, document: Document, origin: Origin) -> dict[str, Any]:
        told = {
            "source_id": as_string(document.id),
            "source_uid": document.uid,
            "strategy": origin.strategy,
            "style": origin.style,
            "epoch": origin.epoch,
            "mix_source": origin.source,
            "run_id": self.run_id,
        }
        return {name: value for name, value in told.items() if value is not None or name == "source_id"}

    def _row(self, document: Document, origin: Origin, path: str, row: int, tokens: int) -> dict[str, Any]:
        text = document.text
        return {
            "uid": document_uid(path.removeprefix("documents/"), row, text),
            "id": as_string(document.id),
            "source": as_string(document.source),
            "strategy": origin.strategy,
            "style": origin.style,
            "shard": path,
            "row": row,
            "tokens": tokens,
            "chars": len(text),
            "text_sha256": hashlib.sha256(text.encode()).hexdigest(),
            "source_uid": document.uid,
            "source_id": as_string(document.id),
            "source_path": document.path,
            "source_row": document.row,
            "epoch": origin.epoch,
            "run_id": self.run_id,
        }


class TokensByRow:
    """Tokens of the documents of a source, as they were counted for the mix."""

    def __init__(self, folder: Folder, number: int, told: dict[str, Any]):
        blocks = source_blocks(folder, number, told)
        self._documents = SourceDocuments(source_folder(folder, number), blocks, told["source_name"], check=False)
        self._file = {file.path: place for place, file in enumerate(blocks.files)}

    def of(self, document: Document) -> int:
        """Tokens of a document."""
        table = self._documents.of_file(self._file[document.path])
        return int(table["tokens"][np.searchsorted(table["row"], document.row)])


def mix_card(told: Mapping[str, Any], output: str, form: str) -> str:
    """The dataset card of a written mix."""
    name = Path(output.rstrip("/")).name
    sources = "\n".join(f"- {one['source_name']}" for one in told["sources"])
    return f"""---
pretty_name: {json.dumps(name)}
tags: [derivedata]
configs:
- config_name: default
  data_files:
  - split: train
    path: documents/*.{form}
---

# {name}

A mixture made with [derivedata](https://pypi.org/project/derivedata/) of

{sources}

Files in path order are the order. `metadata.derivedata` names the source (`mix_source`) and the document of each row.
"""


def olmo_core_config(
    populations: Sequence[Population], *, requested: int, token_root: str, sequence_length: int, batch: int
) -> str:
    """OLMo-core's SourceMixtureDatasetConfig of a mixture, as YAML.

    Args:
        populations: the sources, and what each may give.
        requested: tokens of the mix.
        token_root: where the token files of each source lie, in a folder of its name, unless it names its own.
        sequence_length, batch: in tokens; the batch must be a multiple of the length.
    """
    import yaml

    listed = [
        {
            "source_name": one.source.source_name,
            "target_ratio": one.source.target_ratio,
            "paths": list(one.source.token_paths) or [f"{token_root.rstrip('/')}/{one.source.source_name}/*.npy"],
            "max_repetition_ratio": float(max(1, one.most)),
            "max_source_fraction": one.source.max_source_fraction,
        }
        for one in populations
    ]
    told = "\n".join(f"# {one.source.source_name}: {one.tokens:,} tokens of text" for one in populations)
    content = {
        "source_list": {"sources": listed},
        "requested_tokens": requested,
        "global_batch_size": batch,
        "processes": 1,
    }
    return (
        "# olmo_core.data.source_mixture.SourceMixtureDatasetConfig; token files by `derivedata tokenize`, a folder a "
        f"source\n# sequence_length: {sequence_length}\n{told}\n{yaml.safe_dump(content, sort_keys=False)}"
    )
