"""How the commands talk: plain lines, progress of long work, and tables of what came out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from derivedata.cli.progress import Progress, State, clock
from derivedata.cli.render import text_table

if TYPE_CHECKING:
    from derivedata.pipelines.forecast import Forecast
    from derivedata.pipelines.run import Outcome


class Narrator:
    """Tells on stderr what a run does, so that stdout holds results alone."""

    def say(self, text: str) -> None:
        click.echo(text, err=True)

    @contextmanager
    def track(self, title: str, look: Callable[[], tuple[float, float | None, str] | None]):
        def state() -> State | None:
            seen = look()
            return None if seen is None else State(*seen)

        with Progress(title, state):
            yield


def outcome(outcome: Outcome) -> None:
    """Print what a run left: by style documents, tokens and rejects, and the books."""
    rejected: dict[str, list[str]] = {}
    for row in outcome.summary.rejected.to_dicts():
        if row["stage"] == "generation":
            rejected.setdefault(row["style"], []).append(f"{row['reason']} {row['rows']:,}")
    rows = [
        {
            "style": row["style"],
            "documents": row["documents"],
            "tokens": row["tokens"],
            "bytes": row["bytes"],
            "rejected": ", ".join(rejected.pop(row["style"], [])) or "none",
        }
        for row in outcome.summary.styles.to_dicts()
    ]
    for style, told in rejected.items():
        rows.append({"style": style, "documents": 0, "tokens": 0, "bytes": 0, "rejected": ", ".join(told)})
    click.echo(text_table(rows, ["style", "documents", "tokens", "bytes", "rejected"]))
    books = outcome.summary.books.get("generation")
    if books:
        counts = {"accepted": books.accepted} | {
            name: sum(getattr(books, name).values()) for name in ("rejected", "skipped", "outside")
        }
        told = " + ".join(f"{name} {count:,}" for name, count in counts.items() if count or name != "outside")
        click.echo(f"requests planned {books.planned:,} = {told}")
        if books.skipped:
            click.echo("skipped: " + ", ".join(f"{reason} {count:,}" for reason, count in books.skipped.items()))
    if outcome.generated:
        click.echo(
            f"this run: {outcome.generated:,} new tokens in {clock(outcome.seconds)}, "
            f"{outcome.generated / max(outcome.seconds, 1e-9):,.0f} new tokens/s"
        )
        cached = f" ({outcome.cached_tokens:,} cached)" if outcome.cached_tokens else ""
        click.echo(f"sent: {outcome.prompt_tokens:,} prompt tokens{cached}, as the server counts them")


def forecast(forecast: Forecast, params: float | None) -> None:
    """Print what a run would do, and what its tokens would be worth to a model of `params` parameters."""
    about = "" if forecast.exact else "about "
    length = "as measured here before" if forecast.measured_length else "assumed: half of what each style allows"
    hours = "unknown" if forecast.hours is None else clock(forecast.hours * 3600)
    rate = "" if forecast.rate is None else f" at {forecast.rate:,.0f} new tokens/s"
    click.echo(f"documents      {about}{forecast.documents:,} ({forecast.source_tokens:,} tokens)")
    click.echo(f"requests       {about}{forecast.requests:,}, and {forecast.skipped:,} skipped")
    click.echo(
        f"prompt tokens  {about}{forecast.prompt_tokens:,}, of which {forecast.shared_tokens:,} are shared prefixes"
    )
    click.echo(f"new tokens     about {forecast.new_tokens:,} ({length})")
    click.echo(f"time           {hours}{rate} ({forecast.rate_from})")
    if params is not None:
        from derivedata.cli.eta.tokens import forecast as worth

        click.echo("\nIf all of it is accepted:")
        tokens = {"paraphrase": float(forecast.new_tokens)}
        for line in worth(tokens, fresh_tokens=float(forecast.source_tokens), params=params):
            click.echo(line)


def examples(output: str, styles: Sequence[str]) -> list[dict[str, Any]]:
    """The first document of each style that an output holds."""
    from derivedata.corpus.files import corpus_files
    from derivedata.corpus.reader import RejectedRow, read_rows

    found = []
    for style in styles:
        for file in corpus_files([output]):
            if f"style={style}/" not in file.path:
                continue
            row = next((row for row in read_rows(file) if not isinstance(row, RejectedRow)), None)
            if row is not None:
                found.append(row.to_dolma())
                break
    return found
