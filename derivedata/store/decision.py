"""The decision: which journalled outcome of each request counts, written before anything is made from it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from derivedata.store.units import Unit, kinds_hash

ROOM = "ledger"


def decision_path(name: str) -> str:
    """Where the decision of the unit `name` stands."""
    return f"{ROOM}/{name}.json"


@dataclass(frozen=True, kw_only=True, slots=True)
class Decision:
    """Which segments hold a unit's outcome, in order; the first record of each key counts.

    keys: how many keys they hold. totals: whatever would differ between writers (run id, time of writing, token
    totals): materialise from these, so that every writer makes the same bytes. writer: who decided.
    """

    unit: Unit
    segments: tuple[str, ...]
    keys: int
    totals: Mapping = field(default_factory=dict)
    writer: str = ""

    def to_json(self) -> bytes:
        fields = {"unit": self.unit.name, "kinds": self.unit.kinds, "segments": self.segments, "keys": self.keys}
        fields |= {"totals": dict(self.totals), "writer": self.writer}
        return json.dumps(fields, sort_keys=True, separators=(",", ":")).encode()

    @classmethod
    def from_json(cls, data: bytes) -> Decision:
        fields = json.loads(data)
        kinds = tuple(fields["kinds"])
        unit = Unit.parse(fields["unit"], {kinds_hash(kinds): kinds})
        return cls(
            unit=unit,
            segments=tuple(fields["segments"]),
            keys=fields["keys"],
            totals=fields["totals"],
            writer=fields["writer"],
        )
