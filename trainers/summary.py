"""What a run is remembered by: a row for the runs table of `derivedata eta`, and the same for people."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from derivedata.scaling.law import Law
from derivedata.trainers.effective import Seen, account, value_of
from derivedata.trainers.heldout import Scores
from derivedata.trainers.options import TrainOptions
from derivedata.trainers.plan import Plan


def run_row(seen: Seen, *, n_params: int, n_nominal: float, loss: float, seed: int) -> dict[str, Any]:
    """What `derivedata eta` needs of a run, as measured: D and D' are tokens that were seen, not asked for."""
    derived = seen.derived()
    total = sum(derived.values())
    return {
        "n_params": n_params,
        "n_nominal": round(n_nominal),
        "fresh_tokens": seen.fresh,
        "derived_tokens": total,
        "strategy": "+".join(derived),
        "x": total / seen.fresh if seen.fresh else None,
        "loss": loss,
        "seed": seed,
    }


def summarise(seen: Seen, law: Law, options: TrainOptions, plan: Plan, scores: Scores) -> dict[str, Any]:
    """The summary of a finished run, for summary.json."""
    value = value_of(seen, law, plan.n_params)
    row = run_row(seen, n_params=plan.n_params, n_nominal=options.size.nominal, loss=scores.loss, seed=options.seed)
    return {
        **row,
        **account(seen, law, plan.n_params),
        "losses": dict(scores.by),
        "bits_per_byte": dict(scores.bits_per_byte),
        "law": law.name,
        "outside": list(value.outside),
        "not_in_law": dict(value.unknown),
        "is_untested": value.is_untested,
        "size": options.size.name,
        "parameters": asdict(options.size.count(plan.vocabulary)),
        "vocabulary": plan.vocabulary,
        "tokenizer": plan.tokenizer.name,
        "learning_rate": plan.schedule.peak,
        "weight_decay": options.recipe.weight_decay,
        "batch_tokens": plan.batch * options.length,
        "sequence_length": options.length,
        "steps": plan.steps,
    }


def lines(summary: Mapping[str, Any]) -> list[str]:
    """A summary for people; a star marks what a law says outside the range of its runs."""
    star = " *" if summary["extrapolated"] else ""
    counts = summary["parameters"]
    told = [
        f"{summary['size']}: N {counts['N']:,} parameters without the input embedding,"
        f" {counts['layers']:,} in the layers, {counts['total']:,} in all",
        f"tokens {summary['tokens']:,} = fresh {summary['fresh_tokens']:,}"
        + "".join(f" + {name} {count:,}" for name, count in summary["by_strategy"].items()),
    ]
    if summary["by_style"]:
        told.append("by style: " + ", ".join(f"{name} {count:,}" for name, count in summary["by_style"].items()))
    if summary["effective_tokens"] is not None:
        told.append(f"effective tokens {summary['effective_tokens']:,.0f}{star} by {summary['law']}")
    bits = summary["bits_per_byte"].get("all")
    told.append(
        f"held-out loss {summary['loss']:.4f} nats a token over {summary['eval_tokens']:,} tokens"
        + ("" if bits is None else f", {bits:.4f} bits a byte")
    )
    for name, loss in summary["losses"].items():
        bits = summary["bits_per_byte"].get(name)
        told.append(f"  {name}: {loss:.4f}" + ("" if bits is None else f", {bits:.4f} bits a byte"))
    if summary["law_loss"] is not None and summary["law_loss"] > math.log(summary["vocabulary"]):
        told.append(f"{summary['law']} says nothing about a model that has hardly begun to learn{star}")
    elif summary["law_loss"] is not None:
        told.append(
            f"{summary['law']} expects {summary['law_loss']:.4f}{star}: the run is"
            f" {summary['loss'] - summary['law_loss']:+.4f} nats beside it"
        )
    told += [f"* extrapolated: {'; '.join(summary['outside'])}"] if summary["outside"] else []
    told += ["note: several strategies added up, which no run behind a law tests"] if summary["is_untested"] else []
    for name, count in summary["not_in_law"].items():
        told.append(
            f"note: {count:,} tokens of {name} are not in the effective tokens: {summary['law']} has no eta for them"
        )
    if summary["tokens_per_second"]:
        told.append(f"{summary['tokens_per_second']:,.0f} tokens/s, loading {summary['loading_share']:.1%} of the time")
    return told
