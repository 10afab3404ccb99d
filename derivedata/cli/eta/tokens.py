"""`derivedata eta tokens`: what the tokens of a corpus are worth to a model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from derivedata.cli.eta import words
from derivedata.cli.quantity import Quantity, shorten
from derivedata.errors import UserError

if TYPE_CHECKING:
    from derivedata.cli.eta.holdings import Holdings
    from derivedata.scaling.ensemble import Ensemble
    from derivedata.scaling.worth import Worth


# Nats a token above which a prediction is no prediction: a vocabulary of 100,352 guessed evenly is at 11.5.
GUESSING = 11.5


@click.command()
@click.argument("corpora", metavar="CORPUS...", nargs=-1, required=True)
@click.option("--params", type=Quantity(), required=True, help=words.PARAMS_HELP)
@click.option("--fresh-tokens", type=Quantity(), help="D, when the corpus holds derived documents only.")
@words.law_option
@words.json_option
def tokens(*, corpora, params, fresh_tokens, law, as_json) -> None:
    """Value what CORPUS holds: D, D' by strategy and style, eta, D_eff, and the next token.

    \b
    derivedata eta tokens demo/derived --params 1.2B
    derivedata eta tokens derived --params 190M --fresh-tokens 3.8B --law FIT.json
    """
    from derivedata.cli.eta.holdings import read_holdings
    from derivedata.cli.eta.inputs import read_ensemble

    ensemble = read_ensemble(law)
    holdings = read_holdings(corpora, fresh_tokens)
    value = value_of(holdings, ensemble, params)
    if as_json:
        words.print_json({"holdings": holdings, "worth": value, "law": ensemble.law.name, "interval": ensemble.interval,
                          "n_definition": ensemble.law.n_definition})  # fmt: skip
        return
    for line in lines(holdings, value, ensemble, params):
        words.say(line)


def corpus_lines(corpora: Sequence[str], *, params: float, law: str = "qin2026-n370") -> list[str]:
    """What `derivedata eta tokens` prints, for commands that end with it."""
    from derivedata.cli.eta.holdings import read_holdings
    from derivedata.cli.eta.inputs import read_ensemble

    ensemble, holdings = read_ensemble(law), read_holdings(corpora)
    return lines(holdings, value_of(holdings, ensemble, params), ensemble, params)


def value_of(holdings: Holdings, ensemble: Ensemble, params: float) -> Worth | None:
    """The worth of some holdings; None when D or D' is unknown. A law that knows a style by name uses that."""
    from derivedata.scaling.worth import worth

    if holdings.fresh_tokens is None or any(held.tokens is None for held in holdings.held):
        return None
    derived: dict[str, float] = {}
    for held in holdings.held:
        name = name_in_law(held.strategy, held.style, ensemble)
        derived[name] = derived.get(name, 0.0) + held.tokens
    return worth(ensemble, params=params, fresh_tokens=holdings.fresh_tokens, derived=derived)


def name_in_law(strategy: str, style: str | None, ensemble: Ensemble) -> str:
    """The strategy of the law that values a style: its own if the law has one, else that of its strategy."""
    return style if style in ensemble.law.strategies else strategy


def lines(holdings: Holdings, value: Worth | None, ensemble: Ensemble, params: float) -> list[str]:
    """The answer as text."""

    counted = f", counted with {holdings.tokenizer}" if holdings.tokenizer else ""
    fresh = shorten(holdings.fresh_tokens)
    found = [f"D = {fresh} fresh tokens ({holdings.fresh_from}){counted}", ""]
    rows = [
        {
            "strategy": held.strategy,
            "style": held.style or "-",
            "documents": held.documents,
            "D'": shorten(held.tokens),
            "x": words.figure(held.tokens / holdings.fresh_tokens)
            if holdings.fresh_tokens and held.tokens is not None
            else "unknown",
        }
        for held in holdings.held
    ]
    if rows:
        found += [words.table(rows), ""]
    if value is None:
        found.append("D_eff unknown: give the fresh tokens with --fresh-tokens" if holdings.fresh_tokens is None
                     else "D_eff unknown: some derived shards are not counted in tokens")  # fmt: skip
        return [*found, *words.standing(ensemble), *words.footnotes((), holdings.notes)]
    tpp = words.figure(value.fresh_tokens / params)
    found.append(f"for {shorten(params)} parameters ({tpp} fresh tokens per parameter):")
    rows = [
        {
            "strategy": one.strategy,
            "x": words.figure(one.x),
            "R*": words.starred(words.interval(one.r_star), one.outside),
            "of the limit": words.interval(one.share.map(lambda share: 100 * share), lambda v: f"{v:.0f}%"),
            "eta": words.interval(one.eta),
            "eta D'": words.counts(one.effective_tokens),
            "next token": words.interval(one.marginal),
        }
        for one in value.strategies
    ]
    if rows:
        found.append(words.table(rows))
    untested = " (several strategies added up: untested)" if value.is_untested else ""
    found.append(f"\nD_eff = {words.counts(value.effective_tokens)}{untested}")
    if value.loss.value < GUESSING:
        found.append(
            f"expected loss {words.interval(value.loss, words.nats)} nats a token,"
            f" {words.interval(value.one_epoch_loss, words.nats)} without the derived tokens"
        )
    else:
        found.append("expected loss unknown: the law says nothing about a model that has hardly begun to learn")
    notes = list(holdings.notes)
    for name, count in value.unknown.items():
        known = ", ".join(ensemble.law.strategies) or "none"
        notes.append(
            f"{shorten(count)} tokens of {name} are not in D_eff: {ensemble.law.name} knows {known}; calibrate one"
        )
    beyond = [*value.outside, *(o for one in value.strategies for o in one.outside)]
    return [*found, "", *words.standing(ensemble), *words.footnotes(beyond, notes, law=ensemble.law)]


def forecast(derived: dict[str, float], *, fresh_tokens: float, params: float, law: str = "qin2026-n370") -> list[str]:
    """What planned derived tokens would be worth, for dry runs: D' by strategy beside D."""
    from derivedata.cli.eta.holdings import Held, Holdings
    from derivedata.cli.eta.inputs import read_ensemble

    if not derived:
        raise UserError("nothing is planned")
    ensemble = read_ensemble(law)
    held = tuple(Held(strategy=s, style=None, documents=None, tokens=round(t)) for s, t in derived.items())
    holdings = Holdings(fresh_tokens=fresh_tokens, fresh_from="planned", held=held, tokenizer=None, notes=())
    return lines(holdings, value_of(holdings, ensemble, params), ensemble, params)
