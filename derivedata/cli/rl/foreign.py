"""The logs of other trainers as evaluations and steps: verl's console and file logs, TRL's trainer state and log lines.

C is rollouts: step x B_p x n, which neither trainer logs; so B_p and n are asked for. Steps that a resumed run logged
twice count once, the last one; the log of a killed run so never counts C twice.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from derivedata.errors import UserError

# Our column -> the metrics that mean it, first come first served.
VERL_STEP = {
    "reward": ("critic/score/mean", "critic/rewards/mean", "reward/mean"),
    "entropy": ("actor/entropy", "actor/entropy_loss"),
    "kl": ("actor/kl_loss", "actor/reward_kl_penalty", "critic/kl"),
    "length": ("response_length/mean",),
    "truncated": ("response_length/clip_ratio",),
}
TRL_STEP = {
    "reward": ("reward",),
    "entropy": ("entropy",),
    "kl": ("kl",),
    "length": ("completions/mean_length", "completion_length"),
    "truncated": ("completions/clipped_ratio",),
    "zero_variance": ("frac_reward_zero_std",),
    "tokens": ("num_tokens",),
}
_VERL_LINE = re.compile(r"\bstep:(\d+) - (.*)")
_VERL_PAIR = re.compile(r"([\w./@ +-]+?):(?:np\.\w+\()?(-?(?:\d[\d.]*(?:e[-+]?\d+)?|nan|inf))\)?", re.I)
# val-core/<source>/<variable>/mean@k, best@k/mean, worst@k/mean; what is no accuracy of its own stands in val-aux.
_KINDS = {"mean": "avg", "best": "best", "worst": "worst"}
_VERL_VALIDATION = re.compile(
    r"val-(core|aux)/(?P<source>.+)/(?P<variable>acc|reward|score)/(?P<kind>mean|best|worst)@(?P<k>\d+)(/mean)?"
)


@dataclass(slots=True)
class Foreign:
    """What a log holds: step -> metrics of our columns, step -> evaluation, and remarks."""

    kind: str
    steps: dict[int, dict[str, Any]] = field(default_factory=dict)
    evaluations: dict[int, dict[str, Any]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def read_foreign(path: Path, *, source: str | None = None) -> Foreign:
    """Read a log, whichever of the known kinds it is.

    Args:
        source: data source of verl's validation, where it logs several.

    Raises:
        UserError: no such file, or none of the kinds.
    """
    if not path.is_file():
        raise UserError("no such log", where=path)
    text = path.read_text(encoding="utf-8", errors="replace")
    state = _json(text)
    if isinstance(state, dict) and isinstance(state.get("log_history"), list):
        return _trl(state["log_history"])
    rows = [_json(line) for line in text.splitlines() if line.lstrip().startswith("{")]
    if rows and all(isinstance(row, dict) for row in rows):
        if all("data" in row and "step" in row for row in rows):
            return _verl(((row["step"], row["data"]) for row in rows), source)
        if any("reward" in row or "eval_reward" in row for row in rows):
            return _trl(rows)
    found = [_VERL_LINE.search(line) for line in text.splitlines()]
    if any(found):
        pairs = ((int(m[1]), {k.strip(" -"): float(v) for k, v in _VERL_PAIR.findall(m[2])}) for m in found if m)
        return _verl(pairs, source)
    raise UserError(
        "not a log of verl or TRL", where=path,
        remedy="known are verl's console output and file log, TRL's trainer_state.json and its log lines as JSONL;"
        " any other as a CSV with run, C, reward, n, B_p",
    )  # fmt: skip


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return None


def _pick(metrics: Mapping[str, Any], names: Mapping[str, tuple[str, ...]]) -> dict[str, Any]:
    found = {}
    for column, keys in names.items():
        value = next((metrics[key] for key in keys if isinstance(metrics.get(key), (int, float))), None)
        if value is not None:
            found[column] = value
    return found


def _verl(rows: Iterable[tuple[int, Mapping[str, Any]]], source: str | None) -> Foreign:
    log, sources = Foreign("verl"), set()
    for step, metrics in rows:
        trained = _pick(metrics, VERL_STEP)
        if trained:
            log.steps[step] = trained
        seen: dict[str, tuple[tuple[bool, int], float]] = {}
        for name, value in metrics.items():
            match = _VERL_VALIDATION.fullmatch(name)
            if match is None or not isinstance(value, (int, float)):
                continue
            sources.add(match["source"])
            if source is not None and match["source"] != source:
                continue
            column = _KINDS[match["kind"]]
            # The accuracy before a shaped reward, and of several k the largest: it is the best measurement.
            rank = (match["variable"] == "acc", int(match["k"]))
            if rank > seen.get(column, ((False, 0), 0))[0]:
                seen[column] = rank, float(value)
        if seen:
            k = max(rank[1] for rank, _ in seen.values())
            log.evaluations[step] = {column: value for column, (_, value) in seen.items()} | {"k": k}
    if source is None and len(sources) > 1:
        raise UserError(
            "several validation sets in one log", value=", ".join(sorted(sources)), remedy="choose one with --source"
        )
    if source is not None and source not in sources:
        there = f"there are {', '.join(sorted(sources)) or 'none'}"
        raise UserError("no such validation set", value=source, remedy=there)
    return log


def _trl(rows: Iterable[Mapping[str, Any]]) -> Foreign:
    log = Foreign("TRL")
    for row in rows:
        step = row.get("step")
        if not isinstance(step, int):
            continue
        trained = _pick(row, TRL_STEP)
        if "reward" in trained:
            log.steps[step] = trained
        if isinstance(row.get("eval_reward"), (int, float)):
            log.evaluations[step] = {"avg": float(row["eval_reward"]), "best": None, "worst": None, "k": None}
    if not log.steps and not log.evaluations:
        raise UserError("no step of this log has a reward", remedy="set logging_steps=1 and report the rewards")
    return log
