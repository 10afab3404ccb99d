"""Writes a corpus in the layouts that others read: `derivedata export hub|finephrase CORPUS -o DIR`.

Which files there will be, and what is in each, follows from the corpus's manifest. So a file is made once, under its
final name, whoever is killed; each says in its footer what became of the documents, and the sum must be the manifest's.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import pyarrow as pa
import pyarrow.parquet as pq
from datatrove.pipeline.base import PipelineStep

from derivedata.errors import UserError, refuse_below_one
from derivedata.pipelines.executor import run_locally
from derivedata.pipelines.serving import Listener, Silence
from derivedata.store.books import Books, BooksError
from derivedata.store.lease import Lease
from derivedata.store.manifest import Manifest
from derivedata.store.paths import SCRATCH, Folder, Missing
from derivedata.store.runs import new_run_id

if TYPE_CHECKING:
    from derivedata.store.manifest import View

RECORD = "export.json"
CARD = "README.md"
LOGS = ".derivedata/logs"
FOOTER = b"derivedata.export"
GROUP_ROWS, GROUP_CHARS = 2_000, 16 << 20  # a row group ends with the row that brings it to either


@dataclass(frozen=True, kw_only=True, slots=True)
class ExportOptions:
    """What `derivedata export` takes; see its --help.

    file_bytes: how large a file becomes, in bytes of the corpus's own shards.
    """

    corpus: str
    output: str
    layout: str
    source: Sequence[str] = ()
    file_bytes: int = 256_000_000
    tasks: int = 1
    workers: int | None = None
    restart: bool = False

    def __post_init__(self) -> None:
        refuse_below_one(self, "file_bytes", "tasks", "workers")


@dataclass(frozen=True, kw_only=True, slots=True)
class ExportFile:
    """A file that is to be: the rows of some shards of one configuration."""

    path: str
    config: str
    shards: tuple[Mapping[str, Any], ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Config:
    """A configuration as it came out: `rows` in its files, which hold `documents` of the corpus; bytes in memory."""

    name: str
    files: int
    rows: int
    documents: int
    bytes: int
    size: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Exported:
    """What an export left. left_out: documents that the layout has no place for, by reason."""

    output: str
    configs: tuple[Config, ...]
    left_out: Mapping[str, int] = field(default_factory=dict)


class Layout(Protocol):
    """How a corpus is laid out; made anew in each task."""

    def refuses(self, shard: Mapping[str, Any]) -> str | None:
        """The reason why a shard's documents have no place; None: they have."""

    def path(self, config: str, number: int, files: int) -> str:
        """The name of the file `number` of `files` of a configuration."""

    def schema(self, shard: Mapping[str, Any]) -> pa.Schema:
        """Of the files that this shard goes into."""

    def rows(self, shard: Mapping[str, Any], left_out: Counter[str]) -> Iterator[tuple[dict[str, Any], int]]:
        """(row, how many documents are in it) of a shard; counts the documents that have no place."""

    def card(self, name: str, configs: Sequence[Config]) -> str:
        """The text of README.md."""


def open_layout(options: ExportOptions) -> Layout:
    """The layout that is wanted."""
    if options.layout == "hub":
        from derivedata.pipelines.export_hub import HubLayout

        return HubLayout(options.corpus)
    if options.layout == "finephrase":
        from derivedata.pipelines.export_finephrase import FinephraseLayout

        return FinephraseLayout(options.corpus, options.source)
    raise UserError("no such layout", value=options.layout, remedy="there are hub and finephrase")


def config_name(shard: Mapping[str, Any]) -> str:
    """The configuration a shard belongs to: its style, else how it was derived."""
    return shard["style"] or shard["strategy"] or "fresh"


class ExportStage(PipelineStep):
    """Write files [rank::world] of the plan."""

    name = "📤 Export"
    type = "📤 - EXPORT"

    def __init__(self, options: ExportOptions, files: Sequence[ExportFile]):
        super().__init__()
        self.options, self.files = options, list(files)

    @cached_property
    def layout(self) -> Layout:
        return open_layout(self.options)

    def run(self, data: Any = None, rank: int = 0, world_size: int = 1) -> Iterator[Any]:
        if data:
            yield from data
        folder = Folder(self.options.output)
        for file in self.files[rank::world_size]:
            if not folder.exists(file.path):
                with self.track_time("file"), folder.scratch() as scratch:
                    self._write(file, scratch / "file.parquet")
                    # Another writer's file holds the same rows.
                    folder.create_from(file.path, scratch / "file.parquet")

    def _write(self, file: ExportFile, place: Path) -> None:
        schema = self.layout.schema(file.shards[0])
        left_out: Counter[str] = Counter()
        documents = rows = size = chars = 0
        held: list[dict[str, Any]] = []
        with pq.ParquetWriter(place, schema, compression="zstd") as writer:

            def flush() -> None:
                nonlocal size, chars
                table = pa.Table.from_pylist(held, schema=schema)
                size += table.nbytes
                writer.write_table(table, row_group_size=len(held))
                held.clear()
                chars = 0

            for shard in file.shards:
                for row, count in self.layout.rows(shard, left_out):
                    held.append(row)
                    documents, rows, chars = documents + count, rows + 1, chars + len(row["text"])
                    if len(held) == GROUP_ROWS or chars >= GROUP_CHARS:
                        flush()
            if held:
                flush()
            told = {"rows": rows, "documents": documents, "size": size, "left_out": dict(left_out)}
            writer.add_key_value_metadata({FOOTER: json.dumps(told, sort_keys=True).encode()})
        self.stat_update("documents", value=documents)


def export(options: ExportOptions, listener: Listener | None = None) -> Exported:
    """Export a corpus, going on from whatever files are there.

    Raises:
        UserError: in one line, whatever can be expected to go wrong; finished files are kept.
    """
    listener = listener or Silence()
    view = Manifest(options.corpus).view()
    layout = open_layout(options)
    files = plan_files(view, layout, options.file_bytes)
    folder = Folder(options.output)
    with Lease(folder, new_run_id()):
        _open_output(folder, options, view)
        missing = [file for file in files if not folder.exists(file.path)]
        look = lambda: (sum(folder.exists(file.path) for file in missing), len(missing), "files")  # noqa: E731
        if missing:
            workers = min(options.workers or options.tasks, options.tasks)
            with listener.track("exporting", look):
                run_locally(
                    [ExportStage(options, files)],
                    tasks=options.tasks,
                    workers=workers,
                    logging_dir=folder.url_of(LOGS),
                )
        exported = _account(folder, options, files, view, layout)
        name = Path(options.corpus.rstrip("/")).name
        folder.replace(CARD, layout.card(name, exported.configs).encode())
    _tidy(folder)
    return exported


def _tidy(folder: Folder) -> None:
    """Leave nothing in the folder that is not to be uploaded."""
    folder.remove_tree(LOGS)
    if folder.is_local:
        for name in (SCRATCH, ".writers", LOGS.partition("/")[0]):
            with contextlib.suppress(OSError):  # another export may be at work here
                os.rmdir(os.path.join(folder.url, name))


def plan_files(view: View, layout: Layout, file_bytes: int) -> list[ExportFile]:
    """The files that a corpus becomes: its shards in order, packed.

    Raises:
        UserError: there are none.
    """
    by_config: dict[str, list[list[Mapping[str, Any]]]] = {}
    for shard in view.table("shards").sort_by("path").to_pylist():
        if layout.refuses(shard):
            continue
        packs = by_config.setdefault(config_name(shard), [[]])
        if packs[-1] and sum(one["bytes"] for one in packs[-1]) + shard["bytes"] > file_bytes:
            packs.append([])
        packs[-1].append(shard)
    if not by_config:
        raise UserError("the manifest lists no documents that can be exported so", where=view.folder.url)
    return [
        ExportFile(path=layout.path(config, number, len(packs)), config=config, shards=tuple(pack))
        for config, packs in sorted(by_config.items())
        for number, pack in enumerate(packs)
    ]


def _identity(options: ExportOptions, view: View) -> dict[str, Any]:
    hashes = "\n".join(sorted(view.table("shards", ["sha256"])["sha256"].to_pylist()))
    return {
        "job": "export",
        "layout": options.layout,
        "file_bytes": options.file_bytes,
        "corpus_sha256": hashlib.sha256(hashes.encode()).hexdigest(),
    }


def _open_output(folder: Folder, options: ExportOptions, view: View) -> None:
    """Refuse an output that is not this export's; begin it otherwise."""
    identity = _identity(options, view)
    try:
        was = json.loads(folder.read(RECORD))
        was = was if isinstance(was, dict) else {}
    except Missing:
        strange = next((path for path in folder.names("") if not path.startswith((".writers/", ".tmp/"))), None)
        if strange:
            remedy = "name a new or empty folder"
            raise UserError(
                "the folder is not empty, and not ours", where=folder.url, value=strange, remedy=remedy
            ) from None
        folder.create(RECORD, json.dumps(identity, indent=1).encode())
        return
    except ValueError:
        raise UserError(
            "is damaged", where=folder.url_of(RECORD), remedy="remove the folder and export again"
        ) from None
    if options.restart and was.get("job") == identity["job"]:
        folder.remove_many([path for path in folder.names("") if path.endswith(".parquet")] + [CARD])
        folder.replace(RECORD, json.dumps(identity, indent=1).encode())
        return
    changed = [name for name, value in identity.items() if was.get(name) != value]
    if changed:
        remedy = "add --restart to start over, or name another folder"
        told = "the corpus has other content" if changed == ["corpus_sha256"] else f"changed: {', '.join(changed)}"
        raise UserError(f"holds another export; {told}", where=folder.url, remedy=remedy)


def _account(
    folder: Folder, options: ExportOptions, files: Sequence[ExportFile], view: View, layout: Layout
) -> Exported:
    """The books, from the footers of the files. Raises BooksError when a document is missing or twice."""
    shards = view.table("shards", ["documents", "strategy"]).to_pylist()
    left_out: Counter[str] = Counter()
    for shard in shards:
        if reason := layout.refuses(shard):
            left_out[reason] += shard["documents"]
    counted: dict[str, Counter[str]] = {}
    listed = []
    for file in files:
        with folder.open(file.path) as stream:
            size = stream.seek(0, 2)
            stream.seek(0)
            try:
                metadata = pq.ParquetFile(stream).metadata
                told = json.loads(metadata.metadata[FOOTER])
            except (pa.ArrowException, OSError, ValueError, KeyError, TypeError) as error:
                remedy = "remove the file and run the same command again"
                raise UserError("is damaged", where=folder.url_of(file.path), value=str(error), remedy=remedy) from None
        rows = told["rows"]
        left_out.update(told["left_out"])
        counted.setdefault(file.config, Counter()).update(
            files=1, rows=rows, documents=told["documents"], bytes=size, size=told["size"]
        )
        listed.append({"path": file.path, "rows": rows, "documents": told["documents"], "bytes": size})
    configs = tuple(Config(name=name, **counts) for name, counts in sorted(counted.items()))
    planned = sum(shard["documents"] for shard in shards)
    books = Books(planned=planned, accepted=sum(config.documents for config in configs), outside=left_out)
    try:
        books.balance(folder.url)
    except BooksError as error:
        raise UserError(
            "does not hold the documents that the manifest lists",
            where=folder.url,
            value=error.what,
            remedy="run `derivedata verify` on the corpus",
        ) from None
    record = _identity(options, view) | {
        "books": books.to_dict(),
        "files": listed,
        "configs": list(map(asdict, configs)),
    }
    folder.replace(RECORD, json.dumps(record, indent=1).encode())
    return Exported(output=options.output, configs=configs, left_out=dict(left_out))
