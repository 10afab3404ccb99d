"""The summary of a manifest: documents, tokens and bytes by strategy and style, rejects by reason, the books."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow.compute as pc

from derivedata.store.books import Books

if TYPE_CHECKING:
    import polars as pl

    from derivedata.store.manifest import View

_SHARD_COLUMNS = ["strategy", "style", "tokenizer", "documents", "tokens", "bytes"]
_REJECT_COLUMNS = ["stage", "style", "reason"]


@dataclass(frozen=True, kw_only=True)
class Summary:
    """What an output holds.

    styles: strategy, style, tokenizer, shards, documents, tokens (null where any shard is uncounted), bytes.
    rejected: stage, style (null for input rows), reason, rows.
    books: by stage. units: committed parts.
    counts: tokenizer, strategy, style, documents, tokens of `derivedata tokens`; no rows where nobody counted.
    """

    styles: pl.DataFrame
    rejected: pl.DataFrame
    books: Mapping[str, Books]
    units: int
    counts: pl.DataFrame

    @property
    def documents(self) -> int:
        return int(self.styles["documents"].sum())

    @property
    def shards(self) -> int:
        return int(self.styles["shards"].sum())

    @property
    def bytes(self) -> int:
        return int(self.styles["bytes"].sum())

    @property
    def tokens(self) -> int | None:
        """Tokens of all documents; None when some are not counted, or counted with unlike tokenizers."""
        if self.styles["tokens"].null_count() or self.styles["tokenizer"].n_unique() > 1:
            return None
        return int(self.styles["tokens"].sum())

    @property
    def tokens_told(self) -> str:
        """`tokens` in words."""
        if self.tokens is not None:
            return f"{self.tokens:,} tokens"
        uncounted = self.styles["tokens"].null_count() == self.styles.height
        return "tokens not counted" if uncounted else "tokens not all counted alike"

    def to_dict(self) -> dict:
        """For JSON."""
        return {
            "units": self.units,
            "shards": self.shards,
            "documents": self.documents,
            "tokens": self.tokens,
            "bytes": self.bytes,
            "styles": self.styles.to_dicts(),
            "counts": self.counts.to_dicts(),
            "rejected": self.rejected.to_dicts(),
            "books": {stage: books.to_dict() for stage, books in sorted(self.books.items())},
        }


def summarise(view: View) -> Summary:
    """The summary of one view."""
    import polars as pl

    shards = view.table("shards", _SHARD_COLUMNS)
    counted = shards.group_by(["strategy", "style", "tokenizer"], use_threads=False).aggregate(
        [
            ("documents", "count"),
            ("documents", "sum"),
            ("tokens", "sum"),
            ("bytes", "sum"),
            ("tokens", "count", pc.CountOptions(mode="only_null")),
        ]
    )
    styles = (
        pl.from_arrow(counted.rename_columns(_STYLE_NAMES))
        .with_columns(tokens=pl.when(pl.col("uncounted") == 0).then("tokens"))
        .select("strategy", "style", "tokenizer", "shards", "documents", "tokens", "bytes")
        .sort("strategy", "style", "tokenizer", nulls_last=True)
    )
    rows = view.table("rejected", _REJECT_COLUMNS)
    reasons = rows.group_by(_REJECT_COLUMNS, use_threads=False).aggregate([([], "count_all")])
    rejected = (
        pl.from_arrow(reasons.rename_columns([*_REJECT_COLUMNS, "rows"]))
        .with_columns(pl.col("rows").cast(pl.Int64))
        .sort("stage", "style", "rows", "reason", descending=[False, False, True, False], nulls_last=True)
    )
    units = len(view.fresh) + (view.snapshot.parts if view.snapshot else 0)
    return Summary(styles=styles, rejected=rejected, books=view.books(), units=units, counts=_counts(view))


def _counts(view: View) -> pl.DataFrame:
    """What `derivedata tokens` counted, by tokenizer, strategy and style."""
    import polars as pl

    if "token_counts" not in view.tables:
        return pl.DataFrame(schema=dict.fromkeys(_COUNTED, pl.String) | {"documents": pl.Int64, "tokens": pl.Int64})
    rows = view.table("token_counts", [*_COUNTED, "documents", "tokens"])
    sums = rows.group_by(_COUNTED, use_threads=False).aggregate([("documents", "sum"), ("tokens", "sum")])
    return pl.from_arrow(sums.rename_columns([*_COUNTED, "documents", "tokens"])).sort(_COUNTED, nulls_last=False)


_COUNTED = ["tokenizer", "strategy", "style"]


_STYLE_NAMES = ["strategy", "style", "tokenizer", "shards", "documents", "tokens", "bytes", "uncounted"]
