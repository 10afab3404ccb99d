"""What a unit of measured problems puts into the output: its rollouts, a row a problem, the books."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from derivedata.corpus.writer import ShardWriter
from derivedata.problems.bands import Bands
from derivedata.problems.early_stopping import StoppingRule
from derivedata.problems.passrate import jeffreys_interval
from derivedata.store.books import Books
from derivedata.store.tables import REJECTED, Part, declare, rows_to_table
from derivedata.store.units import Unit

if TYPE_CHECKING:
    from derivedata.pipelines.difficulty import DifficultyConfig
    from derivedata.problems.problem import Problem

ROLLOUT_STAGE = "rollouts"
UNSCORED = "unscored"
TOO_FEW = "too_few_samples"
# Verdicts that say something of the model; the others say that nobody knows.
COUNTED = ("correct", "wrong", "no_answer", "verifier_timeout")
FAILED = ("request_failed", "verifier_error")
# What is drawn for: the measurement; more samples of borderline problems; fresh ones to serve as a baseline.
SAMPLE, REFINE, RESCORE = "sample", "refine", "rescore"
TABLES = {SAMPLE: "problems", REFINE: "refined", RESCORE: "rescored"}

_text, _small, _real = pa.string(), pa.int32(), pa.float64()
ROLLOUTS = declare(
    "rollouts",
    pa.schema(
        [
            ("uid", _text),
            ("sample", _small),
            ("purpose", _text),
            ("verdict", _text),
            ("truncated", pa.bool_()),
            ("answer", _text),
            ("how", _text),
            ("decided_by", _text),
            ("detail", _text),
            ("finish_reason", _text),
            ("prompt_tokens", _small),
            ("completion_tokens", _small),
            ("seed", pa.int64()),
            ("text_sha256", _text),
            ("file", _text),
            ("row", pa.int64()),
            ("run_id", _text),
        ]
    ),
)
_PROBLEM = pa.schema(
    [
        ("uid", _text),
        ("data_source", _text),
        ("ability", _text),
        ("path", _text),
        ("row", pa.int64()),
        ("layout", _text),
        ("prompt_sha256", _text),
        ("band", _text),
        ("unscored", _text),
        ("avg_at_k", _real),
        ("correct", _small),
        ("n", _small),
        ("k", _small),
        ("interval_low", _real),
        ("interval_high", _real),
        ("stopped_early", pa.bool_()),
        *((verdict, _small) for verdict in (*COUNTED[1:], *FAILED)),
        ("truncated_share", _real),
        ("mean_tokens", _real),
        ("prompt_tokens", _small),
        ("model", _text),
        ("model_revision", _text),
        ("temperature", _real),
        ("top_p", _real),
        ("max_tokens", _small),
        ("extractor", _text),
        ("run_id", _text),
    ]
)
# One row a problem in `problems`; `refined` and `rescored` hold further samples of some, in the same columns.
PROBLEMS = declare("problems", _PROBLEM)
for _other in (REFINE, RESCORE):
    declare(TABLES[_other], _PROBLEM)


# What other people measured, as it came with a problem.
CARRIED = declare("carried", pa.schema([("uid", _text), ("name", _text), ("rate", _real)]))


@dataclass(slots=True)
class Tally:
    """What is known of a problem while its samples come in."""

    k: int  # samples wanted
    verdicts: Counter[str] = field(default_factory=Counter)
    unscored: str | None = None

    @property
    def correct(self) -> int:
        return self.verdicts["correct"]

    @property
    def n(self) -> int:
        """Samples that count."""
        return sum(self.verdicts[verdict] for verdict in COUNTED)

    @property
    def done(self) -> int:
        """Samples that have an outcome."""
        return self.verdicts.total()

    def label(self, bands: Bands, rule: StoppingRule | None) -> str | None:
        """The band these samples settle, or None."""
        # Bands can be so wide that no sample is needed to know the label; that would be no measurement.
        if self.unscored or not self.n:
            return None
        if rule is not None:
            return rule.label(self.correct, self.n)
        return bands.label(self.correct / self.n) if self.n == self.k else None

    def may_send(self, rule: StoppingRule | None) -> int:
        """How many further samples are needed for certain, those in flight included."""
        left = self.k - self.done
        if rule is None:
            return left
        return min(left, rule.may_need(self.correct, self.n) or (0 if self.n else 1))


class ScoredPart:
    """Collects the outcomes of a unit, in their final order, into a `Part`."""

    def __init__(
        self,
        config: DifficultyConfig,
        purpose: str,
        bands: Bands,
        rule: StoppingRule | None,
        unit: Unit,
        items: Sequence[Problem],
        scratch: Path,
    ):
        self.config, self.purpose, self.bands, self.rule = config, purpose, bands, rule
        self.unit, self.items, self.k = unit, items, unit.high
        self.file = f"rollouts/{'' if purpose == SAMPLE else f'{purpose}-'}{unit.name}.jsonl.zst"
        self._writer: ShardWriter | None = None
        self._path = scratch / "rollouts.jsonl.zst"
        self.rollouts: list[dict[str, Any]] = []
        self.rejected: list[dict[str, Any]] = []
        self._records: dict[int, list[Mapping[str, Any]]] = {}

    def add(self, record: Mapping[str, Any]) -> None:
        """Take one outcome."""
        problem = self.items[record["position"] - self.unit.first]
        self._records.setdefault(record["position"], []).append(record)
        if record["outcome"] == "skipped":
            return
        if self._writer is None:
            self._writer = ShardWriter(self._path)
        text = record["text"]
        kept = {name: record.get(name) for name in ROLLOUTS.names if name in record}
        kept |= {"uid": problem.uid, "purpose": self.purpose}
        self._writer.write({**kept, "ground_truth": problem.ground_truth, "text": text})
        sha256 = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
        self.rollouts.append({**kept, "file": self.file, "row": len(self.rollouts), "text_sha256": sha256})
        if record["outcome"] == "rejected":
            self.rejected.append(
                {
                    "stage": ROLLOUT_STAGE,
                    "reason": record["verdict"],
                    "detail": record.get("detail"),
                    "path": problem.path,
                    "line": problem.row + 1,
                    "source_uid": problem.uid,
                    "rewrite": record["sample"],
                    "run_id": record["run_id"],
                }
            )

    def close(self) -> Part:
        """The finished part."""
        rows = [
            self._row(problem, self._records.get(self.unit.first + offset, []))
            for offset, problem in enumerate(self.items)
        ]
        verdicts = Counter(rollout["verdict"] for rollout in self.rollouts)
        skipped = Counter(row["unscored"] for row in rows if row["unscored"] not in (None, TOO_FEW))
        planned = self.k * len(self.items)
        not_asked = self.k * skipped.total()
        books = Books(
            planned=planned,
            accepted=sum(verdicts[verdict] for verdict in COUNTED),
            rejected={verdict: verdicts[verdict] for verdict in FAILED},
            skipped={reason: self.k * count for reason, count in skipped.items()},
            outside={"early_stop": planned - not_asked - len(self.rollouts)},
        )
        tables = {
            TABLES[self.purpose]: rows_to_table(rows, _PROBLEM),
            "rollouts": rows_to_table(self.rollouts, ROLLOUTS),
            "rejected": rows_to_table(self.rejected, REJECTED),
        }
        if self.purpose == SAMPLE:
            tables["carried"] = rows_to_table(
                [
                    {"uid": problem.uid, "name": name, "rate": rate}
                    for problem in self.items
                    for name, rate in sorted(problem.carried.items())
                ],
                CARRIED,
            )
        files = {self.file: self._writer.close().path} if self._writer else {}
        return Part(books=books, stage=ROLLOUT_STAGE, files=files, tables=tables)

    def _row(self, problem: Problem, records: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        config, tally = self.config, Tally(self.k)
        asked = []
        for record in records:
            if record["outcome"] == "skipped":
                tally.unscored = record["reason"]
            else:
                tally.verdicts[record["verdict"]] += 1
                asked.append(record)
        answered = [record for record in asked if record["verdict"] != "request_failed"]
        band = tally.label(self.bands, self.rule)
        correct, n = tally.correct, tally.n
        row = {
            "uid": problem.uid,
            "data_source": problem.data_source,
            "ability": problem.ability,
            "path": problem.path,
            "row": problem.row,
            "layout": problem.layout,
            "prompt_sha256": problem.text_sha256,
            "band": band or UNSCORED,
            "unscored": None if band else tally.unscored or TOO_FEW,
            "correct": correct,
            "n": n,
            "k": self.k,
            "stopped_early": band is not None and tally.done < self.k,
            **{verdict: tally.verdicts[verdict] for verdict in (*COUNTED[1:], *FAILED)},
            "model": config.model_name,
            "model_revision": config.model_revision,
            "temperature": config.temperature,
            "top_p": config.top_p,
            "max_tokens": config.max_tokens,
            "extractor": config.extractor,
            "run_id": max((record["run_id"] for record in records), default=None),
        }
        if band is not None:
            low, high = jeffreys_interval(correct, n)
            row |= {"avg_at_k": correct / n, "interval_low": float(low), "interval_high": float(high)}
        if answered:
            row["truncated_share"] = sum(record["truncated"] for record in answered) / len(answered)
            row["mean_tokens"] = sum(record["completion_tokens"] for record in answered) / len(answered)
            row["prompt_tokens"] = answered[0]["prompt_tokens"]
        return row
