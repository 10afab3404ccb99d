"""What a rank has done so far, as a small file under `progress/` that anyone can read while it runs."""

from __future__ import annotations

import json
import time
from collections import Counter
from typing import Any

from derivedata.store.paths import Folder

RANKS = "progress/ranks"


class RankProgress:
    """Counts of one rank, written every second locally and every half minute to object storage."""

    def __init__(self, folder: Folder, rank: int):
        self.folder, self.path = folder, f"{RANKS}/{rank:05d}.json"
        self.seconds = 1.0 if folder.is_local else 30.0
        self.started, self.written, self.ended = time.time(), 0.0, False
        self.counts: Counter[str] = Counter()
        self.styles: dict[str, Counter[str]] = {}
        self.reasons: Counter[str] = Counter()

    def count(self, record: dict[str, Any], *, fresh: bool) -> None:
        """Count an outcome; `fresh` ones were answered in this run, others come from its journal."""
        outcome, tokens = record["outcome"], record["tokens"]
        self.counts["done"] += 1
        self.counts["fresh"] += fresh
        self.counts[outcome] += 1
        self.counts["tokens"] += tokens
        self.counts["fresh_tokens"] += tokens if fresh else 0
        self.counts["generated"] += record.get("completion_tokens", 0) if fresh else 0
        if outcome == "rejected":
            self.reasons[record["reason"]] += 1
        style = self.styles.setdefault(record.get("style", ""), Counter())
        style[outcome] += 1
        style["tokens"] += tokens
        if fresh and "completion_tokens" in record:
            style["answered"] += 1
            style["generated"] += record["completion_tokens"]
        self._write_when_due()

    def planned(self, documents: int) -> None:
        """Count documents whose keys are all planned."""
        self.counts["documents"] += documents

    def add(self, name: str, by: int = 1) -> None:
        """Count something of a stage's own."""
        self.counts[name] += by

    def committed(self) -> None:
        """Count a committed unit."""
        self.counts["units"] += 1
        self._write_when_due()

    def close(self) -> None:
        """Write the last state."""
        self.ended = True
        self._write()

    def _write_when_due(self) -> None:
        if time.time() - self.written >= self.seconds:
            self._write()

    def _write(self) -> None:
        self.written = time.time()
        state = {
            "started": self.started,
            "written": self.written,
            "ended": self.ended,
            **self.counts,
            "styles": {name: dict(counts) for name, counts in self.styles.items()},
            "reasons": dict(self.reasons),
        }
        self.folder.replace(self.path, json.dumps(state).encode())


def read_progress(folder: Folder) -> dict[str, Any]:
    """The counts of all ranks added up (`started` is the earliest, `written` the latest); empty before any."""
    total: Counter[str] = Counter()
    reasons: Counter[str] = Counter()
    styles: dict[str, Counter[str]] = {}
    started, written = float("inf"), 0.0
    for entry in folder.list(RANKS):
        try:
            state = json.loads(folder.read(entry.path))
        except (FileNotFoundError, ValueError):
            continue  # being replaced at this moment; the next look finds it
        started, written = min(started, state.pop("started")), max(written, state.pop("written"))
        state.pop("ended", None)
        reasons.update(state.pop("reasons"))
        for name, counts in state.pop("styles").items():
            styles.setdefault(name, Counter()).update(counts)
        total.update(state)
    if not written:
        return {}
    return {**total, "started": started, "written": written, "reasons": dict(reasons), "styles": styles}
