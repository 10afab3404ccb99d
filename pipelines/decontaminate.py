"""Leaves documents out of a mix that hold text of evaluation files: `decontaminate: [evals.jsonl]` in its file.

The test is Datatrove's NGramsDecontFilter with Datatrove's configuration and hashes: a document is contaminated when
one of its n-grams of 12 words, after Datatrove's normalisation, is an n-gram of an evaluation. Words are what blanks
separate then, in documents and evaluations alike, so languages written without blanks are not covered.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from datatrove.data import Document as TroveDocument
from datatrove.pipeline.base import PipelineStep
from datatrove.utils.word_tokenizers import WordTokenizer

from derivedata.corpus.document import Document
from derivedata.corpus.files import CorpusFile, corpus_files
from derivedata.corpus.reader import RowReader, read_rows
from derivedata.corpus.stream_mix import rows_name
from derivedata.corpus.strict import BadRow, kind_of
from derivedata.errors import UserError
from derivedata.pipelines.mix_documents import SourceDocuments, Wanted, share
from derivedata.store.books import Books
from derivedata.store.ledger import Ledger
from derivedata.store.paths import Folder
from derivedata.store.tables import REJECTED, Part, rows_to_table

if TYPE_CHECKING:
    from datatrove.pipeline.decont import NGramsDecontFilter

STAGE = "decontaminate"
REASON = "contaminated"
INDEX = "plan/evaluations"  # Datatrove's hashes, a file for each evaluation file
SUFFIX = ".index.hashes"


class Words(WordTokenizer):
    """What blanks separate: Datatrove's normalisation has taken away punctuation by then. Needs no model."""

    def word_tokenize(self, text: str) -> list[str]:
        return text.split()

    def sent_tokenize(self, text: str) -> list[str]:
        return [text]

    def span_tokenize(self, text: str) -> list[tuple[int, int]]:
        return [(0, len(text))]


class Decontaminate(PipelineStep):
    """Look for n-grams of the evaluations in every document of every source; files are shared among tasks.

    Args:
        output: the mix, which holds the index.
        wanted: the sources.
    """

    name = "🦠 Decontaminate"
    type = "🔎 - SOURCE"

    def __init__(self, output: str, wanted: Sequence[Wanted]):
        super().__init__()
        self.output, self.wanted = output, list(wanted)

    def run(self, data: Any = None, rank: int = 0, world_size: int = 1) -> Iterator[Any]:
        if data:
            yield from data
        folder = Folder(self.output)
        with folder.scratch() as scratch:
            for path in folder.names(f"{INDEX}/"):
                local = scratch / path.removeprefix(f"{INDEX}/")
                local.parent.mkdir(parents=True, exist_ok=True)
                local.write_bytes(folder.read(path))
            look = _filter(scratch)
            for _, place, blocks, number in share(self.wanted, rank, world_size):
                name = _found_name(blocks.files[number])
                if not place.exists(name):
                    with self.track_time("file"):
                        place.create(name, json.dumps(self._find(look, blocks.files[number])).encode())

    def _find(self, look: NGramsDecontFilter, file: CorpusFile) -> list[dict[str, Any]]:
        found = []
        for row in read_rows(file):
            if row.__class__ is not Document:
                continue
            seen = TroveDocument(text=row.text, id=row.uid)
            if look.filter(seen) is True:
                continue
            self.stat_update(REASON)
            found.append(
                {
                    "uid": row.uid,
                    "path": row.path,
                    "row": row.row,
                    "evaluation": seen.metadata["contaminated_task"],
                    "ngram": seen.metadata["contaminated_ngram"],
                }
            )
        return found


def write_index(folder: Folder, places: Sequence[str]) -> None:
    """Write Datatrove's index of the evaluation files into a mix.

    Raises:
        UserError: a row with nothing to look for, or files that have no n-gram at all.
    """
    from datatrove.pipeline.decont import NGramsDecontIndexer

    look = _filter(Path())
    for file in corpus_files(places):
        hashes: set[int] = set()
        for row in RowReader(file, shape=_evaluation):
            if row.__class__ is not Document:
                remedy = "an evaluation has query and gold, or text"
                raise UserError("is no evaluation", where=f"{file.url} row {row.row}", value=row.detail, remedy=remedy)
            # The indexer itself needs lighteval, which downloads evaluations; what it does with one does not.
            for gold in row.metadata["gold"]:
                hashes.update(NGramsDecontIndexer.compute_hashes(look, gold, row.metadata["query"]))
        if not hashes:
            told = f"no row has {look.config.n_grams} words, so nothing could be found"
            raise UserError(told, where=file.url, remedy="name another file under decontaminate")
        array = np.array(sorted(hashes), look.config.hash_config.np_descr)
        folder.replace(f"{INDEX}/{file.path}{SUFFIX}", array.tobytes())


def evaluations_sha256(places: Sequence[str]) -> str:
    """A hash of what the evaluation files hold: another content is another mix."""
    from derivedata.corpus.blocks import content_sha256

    told = [[file.path, content_sha256(file)] for file in corpus_files(places)]
    return hashlib.sha256(json.dumps(told).encode()).hexdigest()


def leave_out(documents: SourceDocuments) -> Counter[str]:
    """Take the contaminated documents of a source out of those that may be used; how many, by evaluation.

    Raises:
        UserError: none is left.
    """
    counts: Counter[str] = Counter()
    masks = []
    for number, file in enumerate(documents.blocks.files):
        found, before = _found(documents.place, file), documents.allowed[number]
        clean = ~np.isin(documents.of_file(number)["row"], [one["row"] for one in found])
        masks.append(clean if before is None else clean & before)
        counts.update(one["evaluation"] for one in found)
    if counts:
        documents.limit(masks)
        if not any(len(documents.usable(number)) for number in range(len(masks))):
            raise UserError(
                "every document holds text of an evaluation",
                where=f"source {documents.name}",
                value=", ".join(f"{name} {count:,}" for name, count in sorted(counts.items())),
                remedy="leave the source out, or check the evaluation files (numbers count as alike)",
            )
    return counts


def record(folder: Folder, sources: Sequence[SourceDocuments], run_id: str) -> None:
    """Enter what was left out into the books of a mix, once."""
    rows, planned = [], 0
    for documents in sources:
        for number, file in enumerate(documents.blocks.files):
            planned += len(documents.of_file(number))
            for one in _found(documents.place, file):
                detail = f"source {documents.name}, row {one['row']}: {one['evaluation']} has {one['ngram']!r}"
                told = {"path": one["path"], "source_uid": one["uid"], "detail": detail}
                rows.append({"stage": STAGE, "reason": REASON, "run_id": run_id, **told})
    books = Books(planned=planned, accepted=planned - len(rows), rejected={REASON: len(rows)})
    part = Part(books=books, stage=STAGE, tables={"rejected": rows_to_table(rows, REJECTED)})
    Ledger(folder).publish(STAGE, part)


def _filter(index: Path) -> NGramsDecontFilter:
    from datatrove.pipeline.decont import NGramsDecontConfig, NGramsDecontFilter

    # A question that was trained on is as bad as its answer.
    return NGramsDecontFilter(str(index), NGramsDecontConfig(find_query_ngrams=True), language=Words())


def _evaluation(row: dict[str, Any]) -> dict[str, Any]:
    """A row of an evaluation file as a document that carries its query and its golds."""
    query, gold = row.get("query"), row.get("gold", row.get("text"))
    golds = [""] if gold is None else gold if isinstance(gold, list) else [gold]
    for name, value in (("query", query), *(("gold", one) for one in golds)):
        if value is not None and not isinstance(value, str):
            raise BadRow("text-not-a-string", f"`{name}` is {kind_of(value)}")
    if not query and not any(golds):
        raise BadRow("missing-text", f"neither query, gold nor text; the row has {', '.join(list(row)[:12])}")
    return {"text": query or golds[0], "metadata": {"query": query or "", "gold": golds}}


def _found(place: Folder, file: CorpusFile) -> list[dict[str, Any]]:
    return json.loads(place.read(_found_name(file)))


def _found_name(file: CorpusFile) -> str:
    return rows_name(file.path).replace("rows/", "contaminated/").replace(".npy", ".json")
