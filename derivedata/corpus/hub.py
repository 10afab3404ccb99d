"""Data sets in the layouts of Hugging Face: folders of `save_to_disk`, folders and hub names that `load_dataset` reads.

What is JSON, Parquet or Arrow there is read by our own reader, file by file; everything else (CSV, WebDataset, ...)
streams through `datasets`.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from derivedata.corpus.document import Document, RejectedRow, without_compression
from derivedata.corpus.files import FORMATS
from derivedata.corpus.frames import Position
from derivedata.corpus.parquet import document_of
from derivedata.errors import UserError

if TYPE_CHECKING:
    from derivedata.corpus.inputs import Entry

HUB = re.compile(r"(?:hf://datasets/)?(?P<name>[\w.-]+/[\w.-]+?)(?:@(?P<revision>[\w./-]+))?")
CONFIGS = re.compile(r"\A---\s*\n(?:.*\n)*?configs\s*:")


@dataclass(frozen=True, kw_only=True, slots=True)
class HubData:
    """What a data set is read from: files, or shares of a stream; and the splits and configurations left out."""

    origin: str
    files: tuple[str, ...] = ()
    streams: tuple[Mapping[str, Any], ...] = ()
    other_splits: tuple[str, ...] = ()
    other_configs: tuple[str, ...] = ()


def find_hub_data(place: str, *, config: str | None, split: str | None) -> HubData | None:
    """The data set that a folder or a name is, in a layout of Hugging Face; None where it is none.

    Args:
        place: a folder, a hub name (`owner/name`, `owner/name@revision`) or hf://datasets/owner/name.
        config: the configuration; None: the only one, or the default.
        split: the split; None: the only one, or train.

    Raises:
        UserError: no such data set, configuration or split; the folder is damaged.
    """
    folder = Path(place).expanduser()
    if folder.is_dir():
        if (folder / "dataset_dict.json").is_file() or (folder / "state.json").is_file():
            return _saved(folder, split)
        if _has_configs(folder) and not (folder / "run.json").is_file():
            return _resolved(str(folder), folder.name, None, config, split)
        if config is not None or split is not None:
            return _resolved(str(folder), folder.name, None, config, split)
        return None
    match = HUB.fullmatch(place)
    # With a folder here by the owner's name it is a slip in a path: the hub would be asked for half a minute.
    here = folder.exists() or (folder.parent.is_dir() and "@" not in place)
    if match is None or here or any(letter in place for letter in "*?["):
        return None
    return _resolved(match["name"], match["name"].rpartition("/")[2], match["revision"], config, split)


def _has_configs(folder: Path) -> bool:
    try:
        with open(folder / "README.md", encoding="utf-8") as file:
            return CONFIGS.match(file.read(1 << 16)) is not None
    except (OSError, UnicodeDecodeError):
        return False


def _saved(folder: Path, split: str | None) -> HubData:
    """A folder that `save_to_disk` wrote: of one split, or of several."""
    origin, others = folder.name, ()
    if (folder / "dataset_dict.json").is_file():
        splits = _json(folder / "dataset_dict.json").get("splits")
        chosen, others = _choose(splits if isinstance(splits, list) else [], split, str(folder))
        folder = folder / chosen
    elif split is not None:
        raise UserError("holds one split without a name", where=folder, value=split, remedy="leave --split out")
    state = _json(folder / "state.json")
    if state.get("_indices_data_files") or state.get("_indices_files"):
        remedy = "load it, call flatten_indices(), and save it again"
        raise UserError("is saved as a selection of rows", where=folder, remedy=remedy)
    try:
        files = tuple(str(folder / one["filename"]) for one in state["_data_files"])
    except (KeyError, TypeError):
        raise UserError("does not name its data files", where=folder / "state.json") from None
    for file in files:
        if not os.path.isfile(file):
            raise UserError("a data file is missing", where=file)
    return HubData(origin=origin, files=files, other_splits=others)


def _json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        raise UserError("is missing", where=path) from None
    except (OSError, ValueError) as error:
        raise UserError("is no JSON", where=path, value=str(error)) from None
    if not isinstance(found, dict):
        raise UserError("is no JSON object", where=path)
    return found


def _resolved(place: str, origin: str, revision: str | None, config: str | None, split: str | None) -> HubData:
    """A folder or a hub name as `datasets` understands it."""
    with _said(place):
        datasets = _datasets()
        builder = datasets.load_dataset_builder(place, name=config, revision=revision)
        found = builder.config.data_files
        by_split = dict(found) if found else dict.fromkeys(builder.info.splits or {}, ())
        configs = tuple(name for name in builder.builder_configs if name != builder.config.name and config is None)
    chosen, others = _choose(list(by_split), split, place)
    files = tuple(str(file) for file in by_split[chosen])
    if files and all(os.path.splitext(without_compression(file.partition("?")[0]))[1] in FORMATS for file in files):
        return HubData(origin=origin, files=files, other_splits=others, other_configs=configs)
    version = hashlib.sha256(repr(getattr(by_split[chosen], "origin_metadata", ())).encode()).hexdigest()
    wanted = {"place": place, "config": config, "split": chosen, "revision": revision, "version": version}
    with _said(place):
        shards = _stream(wanted).num_shards
    streams = tuple({**wanted, "shard": shard, "shards": shards} for shard in range(shards))
    return HubData(origin=origin, streams=streams, other_splits=others, other_configs=configs)


def _choose(splits: Sequence[str], split: str | None, place: str) -> tuple[str, tuple[str, ...]]:
    """The split that is meant, and the others."""
    if split is None and len(splits) > 1 and "train" not in splits:
        raise UserError("has several splits", where=place, value=", ".join(splits), remedy="choose one with --split")
    chosen = split or ("train" if "train" in splits else next(iter(splits), "train"))
    if chosen not in splits:
        raise UserError(
            "has no such split", where=place, value=chosen, remedy=f"there are {', '.join(splits) or 'none'}"
        )
    return chosen, tuple(name for name in splits if name != chosen)


def _datasets() -> Any:
    """The library, without its bars and its own account of an error that ours tells in one line."""
    import datasets

    datasets.disable_progress_bars()
    datasets.logging.set_verbosity(datasets.logging.CRITICAL)
    return datasets


def _stream(wanted: Mapping[str, Any]) -> Any:
    return _datasets().load_dataset(
        wanted["place"], wanted["config"], split=wanted["split"], revision=wanted["revision"], streaming=True
    )


class StreamRows:
    """A share of a streaming data set; going on means passing over the rows before."""

    def __init__(self, entry: Entry, shape: Callable[[dict[str, Any]], dict[str, Any]], *, first: int):
        self._wanted, self._path, self._shape, self._first = entry.stream, entry.path, shape, first

    def __iter__(self) -> Iterator[Document | RejectedRow]:
        with _said(self._wanted["place"]):
            rows = _stream(self._wanted).shard(num_shards=self._wanted["shards"], index=self._wanted["shard"])
            iterator = iter(rows.skip(self._first) if self._first else rows)
        row = self._first
        while True:
            with _said(self._wanted["place"]):
                fields = next(iterator, None)
            if fields is None:
                return
            yield document_of(fields, self._path, row, shape=self._shape)
            row += 1

    def position(self, row: int) -> Position:
        return Position(row=row, line=row + 1)


@contextlib.contextmanager
def _said(place: str) -> Iterator[None]:
    """Whatever `datasets` raises (it has many classes), as one line that names the data set."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        told = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
        value = f"{type(error).__name__}: {told}"
        here = "" if os.path.exists(place) else "is no file or folder here, and "
        raise UserError(f"{here}is no data set that can be read", where=place, value=value) from error
