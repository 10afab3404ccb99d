"""What the styles make of a model: shares accepted, reasons of rejects, and how outputs compare with their sources.

    derivedata paraphrase CORPUS... -o OUT
    python -m tests.bench.styles OUT CORPUS...      prints two Markdown tables, and writes OUT/progress/styles.json

Overlap is the share of an output's 8-word sequences that its source has. Numbers and names kept are the shares of
the output's different numbers, and of its capitalised words inside sentences, that its source has (English sources
only for names). Length is characters of the output over those of the source. Medians, or means where it says so.
"""

from __future__ import annotations

import io
import json
import re
import statistics
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from derivedata.corpus.document import Document
from derivedata.corpus.files import corpus_files
from derivedata.corpus.reader import read_rows
from derivedata.generation.language import language
from derivedata.generation.measures import names, numbers, overlap

_NUMBERING = re.compile(r"^[ \t>#*_\-•]*(?:[A-Za-z]{1,12}[ \t]*)?\d{1,3}[ \t]*[.):]", re.MULTILINE)


def sources(corpora: list[str]) -> dict[str, str]:
    """uid -> text of every source document."""
    found = {}
    for file in corpus_files(corpora):
        for row in read_rows(file):
            if isinstance(row, Document):
                found[row.uid] = row.text
    return found


def rows(folder: Path, pattern: str) -> Iterator[dict[str, Any]]:
    """The rows of all zstd JSONL files that match."""
    import zstandard

    for path in sorted(folder.glob(pattern)):
        with path.open("rb") as stream:
            reader = zstandard.ZstdDecompressor().stream_reader(stream, read_across_frames=True)
            yield from map(json.loads, io.TextIOWrapper(reader, encoding="utf-8"))


def measure(out: Path, corpora: list[str]) -> dict[str, dict[str, Any]]:
    """The figures of each style, by name."""
    known = sources(corpora)
    styles: dict[str, dict[str, Any]] = {}

    def style(name: str) -> dict[str, Any]:
        fresh = {"accepted": 0, "reasons": Counter(), "cut": 0, "overlap": [], "numbers": [], "names": [], "length": []}
        return styles.setdefault(name, fresh)

    for row in rows(out, "documents/style=*/*.jsonl.zst"):
        derivation = row["metadata"]["derivedata"]
        text, source, of = row["text"], known[derivation["source_uid"]], style(derivation["style"])
        of["accepted"] += 1
        of["cut"] += derivation["finish_reason"] == "length"
        of["overlap"].append(overlap(text, source))
        of["length"].append(len(text) / len(source))
        if said := set(numbers(_NUMBERING.sub(" ", text))):
            of["numbers"].append(len(said & set(numbers(source))) / len(said))
        if language(source) == "en" and (named := names(text)):
            of["names"].append(sum(name in source for name in named) / len(named))
    for row in rows(out, "rejected/*.jsonl.zst"):
        if row.get("style"):
            style(row["style"])["reasons"][row["reason"]] += 1
    return dict(sorted(styles.items()))


def tables(styles: dict[str, dict[str, Any]]) -> str:
    """The figures as two Markdown tables."""

    def mean(values: list[float]) -> str:
        return f"{statistics.mean(values):.2f}" if values else "-"

    first = ["| style | generations | accepted | overlap (mean) | numbers kept (mean) | names kept (mean) | length |"]
    first += ["| --- | --- | --- | --- | --- | --- | --- |"]
    reasons = sorted({reason for of in styles.values() for reason in of["reasons"]})
    second = [f"| style | {' | '.join(reasons)} |", f"| --- |{' --- |' * len(reasons)}"]
    for name, of in styles.items():
        total = of["accepted"] + sum(of["reasons"].values())
        length = f"{statistics.median(of['length']):.2f}" if of["length"] else "-"
        first.append(
            f"| {name} | {total} | {of['accepted']} ({of['accepted'] / total:.0%}) | {mean(of['overlap'])} "
            f"| {mean(of['numbers'])} | {mean(of['names'])} | {length} |"
        )
        second.append(f"| {name} | {' | '.join(str(of['reasons'].get(reason, 0)) for reason in reasons)} |")
    return "\n".join([*first, "", *second])


def main() -> None:
    out, corpora = Path(sys.argv[1]), sys.argv[2:]
    styles = measure(out, corpora)
    print(tables(styles))
    (out / "progress").mkdir(exist_ok=True)
    (out / "progress" / "styles.json").write_text(json.dumps(styles, indent=1))


if __name__ == "__main__":
    main()
