"""What corpora hold, as fresh and derived tokens: read from their manifests, without reading any text."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from derivedata.errors import UserError

# Names under which a manifest lists tokens that are not derived.
FRESH = ("fresh", "source", "original")
INVENTORY = "plan/inventory.json"


@dataclass(frozen=True, kw_only=True, slots=True)
class Held:
    """Derived tokens of a strategy and style: `tokens` None when not counted, `documents` None when only planned."""

    strategy: str
    style: str | None
    documents: int | None
    tokens: int | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Holdings:
    """Tokens of some corpora.

    Args:
        fresh_tokens: D, or None when nobody counted the source.
        fresh_from: where D comes from, in words.
        held: derived tokens by strategy and style.
        tokenizer: what they were counted with, or None.
        notes: one line each.
    """

    fresh_tokens: float | None
    fresh_from: str
    held: tuple[Held, ...]
    tokenizer: str | None
    notes: tuple[str, ...]


def read_holdings(corpora: Sequence[str], fresh_tokens: float | None = None) -> Holdings:
    """Add up the manifests of some corpora.

    Args:
        corpora: output folders.
        fresh_tokens: D as the user knows it; otherwise fresh shards, or an estimate from the size of the source.

    Raises:
        UserError: a folder without a manifest.
    """
    import polars as pl

    from derivedata.store.manifest import Manifest

    manifests = [Manifest(corpus) for corpus in corpora]
    frame = pl.concat([_styles(manifest) for manifest in manifests], how="vertical_relaxed")
    if frame.is_empty():
        remedy = "an order is counted first: derivedata tokens CORPUS --tokenizer NAME"
        raise UserError("the manifest lists no documents", where=", ".join(corpora), remedy=remedy)
    notes = []
    tokenizers = sorted({str(name) for name in frame["tokenizer"].drop_nulls()})
    if len(tokenizers) > 1:
        notes.append(f"tokens of several tokenizers are added up: {', '.join(tokenizers)}")
    is_fresh = pl.col("strategy").is_null() | pl.col("strategy").is_in(FRESH)
    held = tuple(
        Held(strategy=s, style=style, documents=documents, tokens=tokens)
        for s, style, documents, tokens in frame.filter(~is_fresh)
        .group_by("strategy", "style", maintain_order=True)
        .agg(pl.col("documents").sum(), pl.when(pl.col("tokens").is_not_null().all()).then(pl.col("tokens").sum()))
        .iter_rows()
    )
    value, origin = fresh_tokens, "as given"
    if value is None:
        value, origin = _fresh(frame.filter(is_fresh), manifests, notes)
    return Holdings(
        fresh_tokens=value,
        fresh_from=origin,
        held=held,
        tokenizer=tokenizers[0] if len(tokenizers) == 1 else None,
        notes=tuple(notes),
    )


def _styles(manifest):
    """Documents and tokens by strategy, style and tokenizer.

    A shard of a mix holds several strategies, so its documents say. An order has no shards, and a corpus may have been
    made without counting: there it is what `derivedata tokens` counted.
    """
    import polars as pl

    kinds, wanted = ["strategy", "style", "tokenizer"], ["strategy", "style", "tokenizer", "documents", "tokens"]
    summary = manifest.summary()
    frame = summary.styles.select(wanted)
    if frame["tokens"].null_count() == frame.height and summary.counts.height:
        # Of several counts one is enough: that of the tokenizer counted with first, by name.
        counts = summary.counts.select(wanted)
        return counts.filter(pl.col("tokenizer") == counts["tokenizer"].min())
    if "mix" not in frame["strategy"]:
        return frame
    tokenizers = manifest.scan("shards").select(pl.col("path").alias("shard"), "tokenizer")
    documents = manifest.scan("documents").join(tokenizers, on="shard").group_by(kinds)
    told = documents.agg(pl.len().alias("documents"), pl.col("tokens").cast(pl.Int64).sum()).sort(kinds).collect()
    return told.select(wanted)


def _fresh(frame, manifests, notes: list[str]) -> tuple[float | None, str]:
    if len(frame):
        if frame["tokens"].null_count():
            return None, "unknown: some fresh shards are not counted, which `derivedata tokens` does"
        return float(frame["tokens"].sum()), "fresh shards of the manifest"
    counted = _counted_sources(manifests)
    if counted is not None:
        return counted, "the source documents that were derived from, each counted once"
    inventories = {}
    for manifest in manifests:
        if not manifest.folder.exists(INVENTORY):
            return None, "unknown: derived documents only, and no record of their source"
        rows = json.loads(manifest.folder.read(INVENTORY))
        # Two outputs of one source count it once.
        inventories.update({row["sha256"]: row for row in rows})
    source_documents = sum(row["documents"] for row in inventories.values())
    text_bytes = sum(row["text_bytes"] for row in inventories.values())
    per_token = _bytes_per_token(manifests)
    if per_token is None:
        return None, "unknown: the source was not counted in tokens"
    covered = _covered(manifests)
    if covered < 0.95 * source_documents:
        notes.append(
            f"{covered:,} of {source_documents:,} source documents have derivations; the law is about derivations of"
            " all of D, so what is derived from a part saturates earlier"
        )
    return text_bytes / per_token, (
        f"estimated: {text_bytes:,} bytes of source text at {per_token:.2f} bytes a token, as in the derived text"
    )


def _counted_sources(manifests) -> float | None:
    """Tokens of the distinct source documents that the outputs used; None where an output has no record of them."""
    import polars as pl

    if not all("sources" in manifest.view().tables for manifest in manifests):
        return None
    frames = [manifest.scan("sources").select("uid", "tokens") for manifest in manifests]
    return float(pl.concat(frames).unique("uid").select(pl.col("tokens").sum()).collect().item())


def _bytes_per_token(manifests) -> float | None:
    import polars as pl

    chars = tokens = 0
    for manifest in manifests:
        one = manifest.scan("documents").select(
            pl.col("chars").cast(pl.Int64).sum(), pl.col("tokens").cast(pl.Int64).sum()
        )
        c, t = one.collect().row(0)
        chars, tokens = chars + (c or 0), tokens + (t or 0)
    return chars / tokens if tokens else None


def _covered(manifests) -> int:
    import polars as pl

    frames = [manifest.scan("documents").select("source_uid") for manifest in manifests]
    # Exact counts of a billion uids would need as many in memory; a sketch is good to a percent.
    return int(pl.concat(frames).select(pl.col("source_uid").approx_n_unique()).collect().item())
