"""Corpora that are an order and no text: what `virtual.json` in a folder says, and what it stands for.

A virtual repeat, a subset or a mix is a folder with its run record, the counts of its source under `plan/`, and this
small file. `corpus_files` and `open_stream` recognise it.
"""

from __future__ import annotations

import io
import json
import os
import posixpath
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from derivedata.corpus.blocks import CODECS, Blocks, changed, content_sha256, counted_blocks, is_output, open_blocks
from derivedata.corpus.files import VIRTUAL, CorpusFile, corpus_files, is_virtual
from derivedata.corpus.inventory import ShardInventory
from derivedata.corpus.stream import BlockStream, DocumentStream
from derivedata.corpus.windows import Selection
from derivedata.errors import UserError
from derivedata.store.paths import Folder, Missing

INVENTORY = "plan/inventory.json"
SELECTED = "selected.npy"  # of a subset: how many documents of each block of its corpus
FRAMES = "plan/frames.json"  # shards that were rewritten, with the place of each block


def read_virtual(place: str) -> dict[str, Any] | None:
    """What the virtual corpus at a place says; None where the place is none.

    Raises:
        UserError: the file is damaged.
    """
    if not is_virtual(place):
        return None
    data = Folder(place).read(VIRTUAL)
    try:
        told = json.loads(data)
        if not isinstance(told, dict) or told["kind"] not in ("repeat", "subset", "mix"):
            raise ValueError
    except (ValueError, KeyError):
        raise UserError(
            "is damaged", where=f"{place.rstrip('/')}/{VIRTUAL}", remedy="make it again by its command"
        ) from None
    return told


def write_virtual(folder: Folder, told: dict[str, Any]) -> None:
    """Say what a folder stands for."""
    folder.replace(VIRTUAL, json.dumps(told, indent=1, ensure_ascii=False).encode() + b"\n")


def absolute(places: Sequence[str]) -> list[str]:
    """Places so that a later command finds them from another folder."""
    return [place if "://" in place else os.path.abspath(os.path.expanduser(place)) for place in places]


def planned_blocks(folder: Folder, places: Sequence[str]) -> Blocks:
    """The blocks of the corpus that a folder of ours was made from: as its manifest lists them, or as they were counted
    in `plan/inventory.json`.

    Raises:
        UserError: the corpus is no longer what was counted.
    """
    if len(places) == 1 and is_output(places[0]):
        return open_blocks(places)
    try:
        inventories = [ShardInventory.from_dict(row) for row in json.loads(folder.read(INVENTORY))]
    except (ValueError, TypeError, KeyError):
        raise UserError("is damaged", where=folder.url_of(INVENTORY), remedy="add --restart to start over") from None
    except Missing:
        raise UserError("is not finished", where=folder.url, remedy="run its command again") from None
    now = {file.path: file for file in corpus_files(places)}
    counted = {inventory.path for inventory in inventories}
    odd = [f"{path} is new" for path in now if path not in counted] + [f"{p} is gone" for p in counted if p not in now]
    if odd:
        raise UserError(
            f"the corpus is not what it was: {'; '.join(odd[:3])}",
            where=folder.url,
            remedy="put it back, or start over with --restart",
        )
    for inventory in inventories:
        file = now[inventory.path]
        if file.version != inventory.version and (
            file.bytes != inventory.bytes or content_sha256(file) != inventory.sha256
        ):
            raise changed(file)
    return counted_blocks([now[inventory.path] for inventory in inventories], inventories)


def with_frames(folder: Folder, blocks: Blocks) -> Blocks:
    """The blocks, with shards that can't be read from the middle replaced by what the folder has in their place."""
    try:
        told = json.loads(folder.read(FRAMES))
    except Missing:
        return blocks
    except ValueError:
        raise UserError("is damaged", where=folder.url_of(FRAMES), remedy="add --restart to start over") from None
    files, table = list(blocks.files), blocks.table.copy()
    for number, file in enumerate(blocks.files):
        if file.path in told:
            path, frames = told[file.path]
            files[number] = replace(file, url=folder.url_of(path), version="", format="jsonl")
            own = table["file"] == number
            table["offset"][own], table["length"][own] = np.array(frames, np.int64).T
            table["skip"][own], table["codec"][own] = 0, CODECS.index("zstd")
    return replace(blocks, files=tuple(files), table=table)


def open_repeat(place: str, told: dict[str, Any]) -> BlockStream:
    """The stream of a virtual repeat."""
    folder = Folder(place)
    blocks = planned_blocks(folder, told["corpus"])
    if blocks.fingerprint != told["blocks"]:
        raise UserError(
            "the corpus is not what it was when the repeat was made", where=place, remedy="make it again by its command"
        )
    return BlockStream(
        with_frames(folder, blocks),
        seed=told["seed"],
        epochs=told["epochs"],
        extra=told["extra_documents"],
        window_bytes=told["window_bytes"],
    )


def subset_blocks(place: str, told: dict[str, Any]) -> Blocks:
    """The blocks of a subset: those of its corpus, with as many documents in each as are selected."""
    # What was counted is kept once, in the folder that holds the subsets.
    whole = planned_blocks(Folder(parent(place)), told["corpus"])
    if whole.fingerprint != told["blocks"]:
        remedy = "make it again by its command"
        raise UserError("the corpus is not what it was when the subset was taken", where=place, remedy=remedy)
    selected = np.load(io.BytesIO(Folder(place).read(SELECTED)))
    table = whole.table.copy()
    table["bytes"] = table["bytes"] * selected // np.maximum(table["documents"], 1) + 1
    table["documents"] = selected
    selection = subset_selection(told)
    return replace(
        whole,
        files=tuple(replace(file, selection=selection) for file in whole.files),
        table=table[selected > 0],
        rejected={},
    )


def subset_selection(told: dict[str, Any]) -> Selection:
    """Which documents a subset holds."""
    return Selection(seed=told["seed"], low=int(told["low"]), high=int(told["high"]))


def parent(place: str) -> str:
    """The folder that a folder is in."""
    return posixpath.dirname(place.rstrip("/")) if "://" in place else os.path.dirname(os.path.abspath(place))


def virtual_files(place: str) -> list[CorpusFile]:
    """The files that a virtual corpus stands for, where it is asked for documents and not for an order."""
    told = read_virtual(place)
    if told["kind"] == "mix":
        raise UserError(
            "a virtual mix is an order over several corpora, not one corpus",
            where=place,
            remedy="name one of its sources, or write the mix with --materialize",
        )
    files = corpus_files(told["corpus"])
    if told["kind"] == "repeat":
        return files
    selection = subset_selection(told)
    return [replace(file, selection=selection) for file in files]


def open_virtual(place: str, told: dict[str, Any]) -> DocumentStream:
    """The stream of what `read_virtual` found at a place."""
    if told["kind"] == "subset":
        return BlockStream(subset_blocks(place, told))
    if told["kind"] == "mix":
        from derivedata.corpus.stream_mix import open_mix

        return open_mix(place, told)
    return open_repeat(place, told)
