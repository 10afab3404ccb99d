"""What an ingestion reads: the entries of its plan, settled when it begins and compared whenever it goes on.

The plan stands in `plan/inputs.json` of the output. It numbers the entries, so that names of units stay what they are.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from derivedata.corpus.attributes import attribute_file
from derivedata.corpus.document import RejectedRow
from derivedata.corpus.files import FORMATS, CorpusFile, corpus_files
from derivedata.corpus.hub import HubData, find_hub_data
from derivedata.corpus.inputs import INPUT_FORMATS, STREAM, TEXT, Entry, Shaping, entries, open_rows
from derivedata.corpus.source import Source as ByteSource
from derivedata.errors import UserError
from derivedata.store.paths import Folder

PLAN = "plan/inputs.json"
LOOK_ENTRIES, LOOK_ROWS = 5, 20  # of which the first are looked at before anything is written


def find_entries(
    sources: Sequence[str],
    *,
    config: str | None = None,
    split: str | None = None,
    text_files: bool = False,
    attributes: Sequence[str] = (),
    every_config: bool = False,
    say: Callable[[str], None] = lambda text: None,
) -> list[Entry]:
    """The entries that sources stand for, in the order in which they are named.

    Args:
        sources: folders, files, globs, URLs; folders and hub names of Hugging Face data sets.
        config, split: of a Hugging Face data set.
        text_files: every file is one document, whatever its name.
        attributes: names or folders of Dolma attributes to join.
        every_config: of a folder with several configurations, none of which is named, all are meant.
        say: hears what is left out.

    Raises:
        UserError: nothing is found, or something that can't be.
    """
    found: list[Entry] = []
    plain: list[str] = []
    formats = dict.fromkeys(INPUT_FORMATS, TEXT) if text_files else INPUT_FORMATS
    hub_data = {place: None if text_files else find_hub_data(place, config=config, split=split) for place in sources}
    if (config or split) and not any(hub_data.values()):
        raise UserError("--config and --split are for Hugging Face data sets", where=", ".join(sources))
    for place, data in hub_data.items():
        if data is None:
            plain.append(place)
            continue
        if every_config and data.files and os.path.isdir(place):
            data = _every_config(place, data, split)
        if data.other_configs:
            say(f"{place}: configuration(s) left out, --config takes one: {', '.join(data.other_configs)}")
        if data.other_splits:
            say(f"{place}: split(s) left out: {', '.join(data.other_splits)}")
        found += _hub_entries(data, first=len(found))
    if plain:
        files = _all_text(corpus_files(plain, formats), text_files)
        origins = {file.url: _origin(file, plain) for file in files}
        for origin in dict.fromkeys(origins.values()):
            its = [file for file in files if origins[file.url] == origin]
            found += entries(its, origin=origin, first=len(found))
    for entry in found:
        for file in entry.files:
            _check_name(file)
    if attributes:
        found = [_with_attributes(entry, attributes) for entry in found]
    return found


def _every_config(place: str, data: HubData, split: str | None) -> HubData:
    """A folder's configurations as one; a file that several of them hold is read once."""
    others = [find_hub_data(place, config=name, split=split) for name in data.other_configs]
    files = dict.fromkeys(file for one in (data, *others) for file in one.files)
    splits = dict.fromkeys(name for one in (data, *others) for name in one.other_splits)
    return replace(data, files=tuple(files), other_splits=tuple(splits), other_configs=())


def _all_text(files: list[CorpusFile], text_files: bool) -> list[CorpusFile]:
    return [replace(file, format=TEXT) for file in files] if text_files else files


def _hub_entries(data: HubData, *, first: int) -> list[Entry]:
    if data.files:
        # A suffix of Arrow's own; everything else that is named here is JSON or Parquet.
        files = corpus_files(data.files, FORMATS | {".arrow": "arrow"})
        order = {file: number for number, file in enumerate(data.files)}
        files.sort(key=lambda file: order.get(file.url, len(order)))
        return entries(files, origin=data.origin, first=first)
    return [
        Entry(
            number=first + number,
            kind=STREAM,
            path=f"{stream['place']}/{stream['split']}/{stream['shard']:05d}",
            stream=stream,
            origin=data.origin,
        )
        for number, stream in enumerate(data.streams)
    ]


def _origin(file: CorpusFile, places: Sequence[str]) -> str:
    """What a file belongs to: the name of the folder, or of the file, that was given for it."""
    for place in places:
        whole = place if "://" in place else os.path.abspath(os.path.expanduser(place))
        if file.url == whole or file.url.startswith(f"{whole.rstrip('/')}/"):
            name = os.path.basename(whole.rstrip("/"))
            if name == "documents":
                name = os.path.basename(os.path.dirname(whole.rstrip("/"))) or name
            return name.partition(".")[0] or name
    return os.path.basename(os.path.dirname(file.url)) or file.path.partition(".")[0]


def _check_name(file: CorpusFile) -> None:
    try:
        file.url.encode()
    except UnicodeEncodeError:
        raise UserError("the name of the file is no UTF-8", where=ascii(file.url), remedy="rename it") from None


def _with_attributes(entry: Entry, attributes: Sequence[str]) -> Entry:
    if entry.kind in (STREAM, TEXT):
        raise UserError("attributes go with files of documents", where=entry.path)
    return replace(entry, attributes=tuple(attribute_file(entry.files[0], one) for one in attributes))


def settle_plan(folder: Folder, found: Sequence[Entry], read: Mapping[int, Mapping[str, Any]]) -> list[Entry]:
    """The plan of an output: as it was settled, or as it is now settled from what was found.

    Args:
        folder: the output.
        found: what the sources are now.
        read: the last committed piece of each entry, which may hold the hash of the file.

    Raises:
        UserError: the sources are no longer what the output was begun from.
    """
    data = json.dumps([entry.to_dict() for entry in found], sort_keys=True).encode()
    if folder.create(PLAN, data):
        return list(found)
    try:
        plan = [Entry.from_dict(values) for values in json.loads(folder.read(PLAN))]
    except (ValueError, TypeError, KeyError):
        remedy = "start over with --restart"
        raise UserError("is damaged", where=folder.url_of(PLAN), remedy=remedy) from None
    _refuse_changed(plan, found, read)
    return list(found)


def _refuse_changed(plan: Sequence[Entry], found: Sequence[Entry], read: Mapping[int, Mapping[str, Any]]) -> None:
    was = {file.path: (entry, file) for entry in plan for file in entry.files}
    now = {file.path: (entry, file) for entry in found for file in entry.files}
    changed = [f"{path} is gone" for path in was if path not in now]
    changed += [f"{path} is new" for path in now if path not in was]
    for path in was.keys() & now.keys():
        (old, before), (new, file) = was[path], now[path]
        if old.number != new.number or old.attributes != new.attributes or old.kind != new.kind:
            changed.append(f"{path} has another place in the plan")
        elif before.bytes != file.bytes or (
            # A copy has another time of modification and the same bytes; only the bytes matter.
            before.version != file.version and old.number in read and _differs(file, read[old.number].get("sha256"))
        ):
            changed.append(f"{path} has other content")
    if [entry.stream for entry in plan] != [entry.stream for entry in found]:
        changed.append("a stream has other content")
    if changed:
        shown = "; ".join(changed[:3]) + (f"; and {len(changed) - 3} more" if len(changed) > 3 else "")
        raise UserError(
            f"the input is not what this output was started from: {shown}",
            remedy="put it back, write to another output, or start over with --restart",
        )


def _differs(file: CorpusFile, sha256: str | None) -> bool:
    if sha256 is None:
        return True
    digest = hashlib.sha256()
    with ByteSource(file.url, digest=digest) as stream:
        stream.drain()
    return digest.hexdigest() != sha256


def look_first(found: Sequence[Entry], shape_of: Callable[[Entry], Shaping]) -> None:
    """Look at the first rows, so that a field that no row has is said before anything is written.

    Raises:
        UserError: none of them has the text where it is looked for; or they are documents that were derived already.
    """
    lacking: RejectedRow | None = None
    for entry in found[:LOOK_ENTRIES]:
        for number, item in enumerate(open_rows(entry, shape_of(entry))):
            if not isinstance(item, RejectedRow):
                if isinstance((item.fields.get("metadata") or {}).get("derivedata"), dict):
                    raise UserError(
                        "its documents were derived with derivedata",
                        where=entry.path,
                        remedy="use the output that holds them, or say so: --strategy",
                    )
                return
            if item.reason != "missing-text":
                return
            lacking = lacking or item
            if number + 1 == LOOK_ROWS:
                break
    if lacking is not None:
        where = f"{lacking.path}, line {lacking.line}"
        raise UserError(lacking.detail, where=where, remedy="name the field that holds the text: --text-field")
