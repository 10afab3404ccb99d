"""The layout in which data sets stand on the Hugging Face hub: Parquet, a folder a configuration, a card that says so.

data/train-00000-of-00002.parquet            documents that are not derived
faq/train-00000-of-00001.parquet             a configuration a style
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from derivedata.corpus.card import DERIVATION_FIELDS, DOCUMENT_FIELDS, features
from derivedata.corpus.document import Document
from derivedata.corpus.files import CorpusFile
from derivedata.corpus.reader import RejectedRow, read_rows
from derivedata.corpus.shape import as_id
from derivedata.corpus.writer import encode_row
from derivedata.errors import UserError
from derivedata.store.paths import Folder
from derivedata.store.tables import FRESH

if TYPE_CHECKING:
    from derivedata.pipelines.export import Config

FRESH_FIELDS = DOCUMENT_FIELDS | {"metadata": "string"}
TYPES = {"string": pa.string(), "int64": pa.int64(), "float64": pa.float64()}


def arrow_schema(fields: Mapping[str, Any]) -> pa.Schema:
    """Fields as a card spells them, as Arrow's."""
    return pa.schema([(name, _arrow_type(kind)) for name, kind in fields.items()])


def _arrow_type(kind: Any) -> pa.DataType:
    if isinstance(kind, Mapping):
        return pa.struct([(name, _arrow_type(inner)) for name, inner in kind.items()])
    if isinstance(kind, list):
        return pa.list_(_arrow_type(kind[0]))
    return TYPES[kind]


class HubLayout:
    """Documents as they are in the corpus; metadata of derived ones as a struct, of others as JSON."""

    def __init__(self, corpus: str):
        self.folder = Folder(corpus)

    def refuses(self, shard: Mapping[str, Any]) -> str | None:
        return None

    def path(self, config: str, number: int, files: int) -> str:
        folder = "data" if config == FRESH else config
        return f"{folder}/train-{number:05d}-of-{files:05d}.parquet"

    def schema(self, shard: Mapping[str, Any]) -> pa.Schema:
        return arrow_schema(_fields(shard))

    def rows(self, shard: Mapping[str, Any], left_out: Counter[str]) -> Iterator[tuple[dict[str, Any], int]]:
        derived = _fields(shard) is DOCUMENT_FIELDS
        for document in read_shard(self.folder, shard):
            row = {name: as_id(document.fields.get(name)) for name in ("id", "source", "added", "created")}
            metadata = dict(document.metadata or {})
            if document.extra:
                metadata |= {"extra": document.extra}
            row |= {"text": document.text, "metadata": _derived(metadata) if derived else as_json(metadata)}
            yield row, 1

    def card(self, name: str, configs: Sequence[Config]) -> str:
        return hub_card(name, configs, {one.name: _fields({"strategy": one.name}) for one in configs}, self.path)


def _fields(shard: Mapping[str, Any]) -> dict[str, Any]:
    return FRESH_FIELDS if shard["strategy"] in (FRESH, None) else DOCUMENT_FIELDS


def read_shard(folder: Folder, shard: Mapping[str, Any]) -> Iterator[Document]:
    """The documents of a shard of an output. Raises UserError for a row that is none."""
    form = "parquet" if shard["format"] == "parquet" else "jsonl"
    path = shard["path"]
    file = CorpusFile(folder.url_of(path), path.removeprefix("documents/"), shard["bytes"], "", form)
    for row in read_rows(file):
        if isinstance(row, RejectedRow):
            remedy = "run `derivedata verify` on the corpus"
            raise UserError("is damaged", where=f"{file.url}, line {row.line}", value=row.detail, remedy=remedy)
        yield row


def as_json(value: Mapping[str, Any]) -> str:
    """A mapping as JSON text."""
    return encode_row(value).decode()


def _derived(metadata: dict[str, Any]) -> dict[str, Any]:
    """The derivation in its fixed fields, everything else as JSON."""
    derivation = metadata.pop("derivedata", None)
    derivation = derivation if isinstance(derivation, dict) else {}
    params = derivation.get("params")
    params = params if isinstance(params, dict) else {}
    source = metadata.pop("source_metadata", None)
    rest = metadata | ({} if source is None else {"source_metadata": source})
    return {
        "derivedata": {name: derivation.get(name) for name in DERIVATION_FIELDS}
        | {"params": {name: params.get(name) for name in DERIVATION_FIELDS["params"]}},
        "source_metadata": source if not metadata and isinstance(source, str) else as_json(rest),
    }


def hub_card(name: str, configs: Sequence[Config], fields: Mapping[str, Mapping[str, Any]], path: Any) -> str:
    """A card whose YAML names configurations, files, features and sizes, as the hub's own tools write it."""
    import yaml

    head: dict[str, Any] = {"pretty_name": name, "tags": ["derivedata"], "configs": [], "dataset_info": []}
    if any(config.name != FRESH for config in configs):
        head["tags"] = ["synthetic", "derivedata"]
    for number, config in enumerate(configs):
        title = "default" if config.name == FRESH else config.name
        folder = path(config.name, 0, 1).rpartition("/")[0]
        entry = {"config_name": title, "data_files": [{"split": "train", "path": f"{folder}/*.parquet"}]}
        if number == 0 and title != "default":
            entry["default"] = True
        head["configs"].append(entry)
        head["dataset_info"].append(
            {
                "config_name": title,
                "features": features(fields[config.name]),
                "splits": [{"name": "train", "num_bytes": config.size, "num_examples": config.rows}],
                "download_size": config.bytes,
                "dataset_size": config.size,
            }
        )
    table = "\n".join(f"| {config.name} | {config.rows:,} | {config.documents:,} |" for config in configs)
    first = head["configs"][0]["config_name"]
    return f"""---
{yaml.safe_dump(head, sort_keys=False, allow_unicode=True).strip()}
---

# {name}

Exported from a corpus of [derivedata](https://pypi.org/project/derivedata/).

| configuration | rows | documents |
| --- | --- | --- |
{table}

```python
from datasets import load_dataset

documents = load_dataset("PATH", "{first}", split="train")
```
"""
