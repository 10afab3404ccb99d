"""FinePhrase's layout: a folder a style, Parquet, a row a source document, its generations in `rollout_results`.

    faq/00000_0.parquet     id, text (the source), source, metadata (JSON), rollout_results

Note what `text` is there: training on it trains on the sources. Pieces and rewrites of one document are generations of
one row, in that order.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from derivedata.corpus.document import Document, without_compression
from derivedata.corpus.files import CorpusFile, corpus_files
from derivedata.corpus.reader import RejectedRow, read_rows
from derivedata.corpus.shape import as_id
from derivedata.errors import UserError
from derivedata.pipelines.export_hub import arrow_schema, as_json, hub_card, read_shard
from derivedata.store.manifest import Manifest, View
from derivedata.store.runs import current_run
from derivedata.store.tables import FRESH

if TYPE_CHECKING:
    from derivedata.pipelines.export import Config

NO_SOURCE, NOT_DERIVED = "no-source", "not-derived"
ROLLOUT = {
    "text": "string",
    "finish_reason": "string",
    "usage": {"completion_tokens": "int64", "prompt_tokens": "int64", "total_tokens": "int64"},
}
FIELDS = {"id": "string", "text": "string", "source": "string", "metadata": "string", "rollout_results": [ROLLOUT]}
INDEX = ("row", "source_path", "source_row", "source_uid", "rewrite", "piece")


class FinephraseLayout:
    """Derived documents put back under the text of their source, which is read from the source corpus."""

    def __init__(self, corpus: str, source: Sequence[str]):
        self.corpus, self.given = corpus, tuple(source)

    @cached_property
    def view(self) -> View:
        return Manifest(self.corpus).view()

    @cached_property
    def sources(self) -> dict[str, CorpusFile]:
        """The files of the source corpus by their paths, however they are compressed now."""
        places = self.given
        if not places:
            record = current_run(self.view.folder)
            places = tuple(record.config.extent.get("corpus", ()) if record else ())
        if not places:
            raise UserError("does not say what it was derived from", where=self.corpus, remedy="name it: --source")
        return {without_compression(file.path): file for file in corpus_files(places)}

    def refuses(self, shard: Mapping[str, Any]) -> str | None:
        return NOT_DERIVED if shard["strategy"] in (FRESH, None) else None

    def path(self, config: str, number: int, files: int) -> str:
        return f"{config}/{number:05d}_0.parquet"

    def schema(self, shard: Mapping[str, Any]) -> pa.Schema:
        return arrow_schema(FIELDS)

    def rows(self, shard: Mapping[str, Any], left_out: Counter[str]) -> Iterator[tuple[dict[str, Any], int]]:
        index = self.view.dataset("documents").to_table(columns=list(INDEX), filter=pc.field("shard") == shard["path"])
        places = {row["row"]: row for row in index.to_pylist()}
        made: dict[tuple[str, int], list[tuple[int, int, dict[str, Any]]]] = {}
        wanted: dict[str, dict[int, str]] = {}
        for document in read_shard(self.view.folder, shard):
            place = places[document.row]
            if place["source_uid"] is None:
                left_out[NO_SOURCE] += 1
                continue
            key = (place["source_path"], place["source_row"])
            wanted.setdefault(key[0], {})[key[1]] = place["source_uid"]
            order = (place["rewrite"] or 0, place["piece"] or 0)
            made.setdefault(key, []).append((*order, _rollout(document)))
        for path, uids in sorted(wanted.items()):
            for source in self._read(path, uids):
                rollouts = sorted(made[path, source.row], key=lambda one: one[:2])
                row = {
                    "id": as_id(source.id),
                    "text": source.text,
                    "source": source.source,
                    "metadata": as_json(source.metadata or {}),
                    "rollout_results": [rollout for _, _, rollout in rollouts],
                }
                yield row, len(rollouts)

    def card(self, name: str, configs: Sequence[Config]) -> str:
        return hub_card(name, configs, {config.name: FIELDS for config in configs}, self.path)

    def _read(self, path: str, uids: Mapping[int, str]) -> Iterator[Document]:
        """The source documents of some rows of a file, in order; each must be the one that was derived from."""
        file = self.sources.get(without_compression(path))
        if file is None:
            raise UserError("is no longer in the source", where=path, remedy="say where the source is now: --source")
        found = 0
        for row in read_rows(file, first_row=min(uids), stop_row=max(uids) + 1):
            if row.row not in uids:
                continue
            # The path may have another compression than when it was derived from, which uids don't show.
            if isinstance(row, RejectedRow) or row.uid != uids[row.row]:
                raise UserError("is not the document that was derived from", where=f"{file.url}, row {row.row}")
            found += 1
            yield row
        if found != len(uids):
            raise UserError(f"{len(uids) - found} documents that were derived from are gone", where=file.url)


def _rollout(document: Document) -> dict[str, Any]:
    derivation = (document.metadata or {}).get("derivedata") or {}
    prompt, completion = derivation.get("prompt_tokens"), derivation.get("completion_tokens")
    total = None if prompt is None or completion is None else prompt + completion
    return {
        "text": document.text,
        "finish_reason": derivation.get("finish_reason"),
        "usage": {"completion_tokens": completion, "prompt_tokens": prompt, "total_tokens": total},
    }
