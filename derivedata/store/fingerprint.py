"""The configuration of a run in three parts, and what may change between two runs on one output.

identity: what the text of an existing key depends on (model, sampling, seed, the texts of the styles, the input); a
change is refused. extent: how much is wanted (tokens, documents, rewrites, styles); a change extends the output.
execution: how it is done (tasks, workers, threads); a change means nothing for the output.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from derivedata.errors import UserError

# Entries of identity that hold one entry a kind: a run may add kinds or leave some out, not change one.
ADDITIVE = ("styles",)
_HASH = re.compile(r"[0-9a-f]{16,}")
_ABSENT = object()


@dataclass(frozen=True, kw_only=True, slots=True)
class RunConfig:
    """A resolved configuration; values are JSON-like."""

    identity: Mapping[str, Any] = field(default_factory=dict)
    extent: Mapping[str, Any] = field(default_factory=dict)
    execution: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("identity", "extent", "execution"):
            # As it comes back from a file, so that comparing a stored and a new one is comparing like with like.
            object.__setattr__(self, name, json.loads(json.dumps(getattr(self, name), sort_keys=True)))

    @property
    def fingerprint(self) -> str:
        """sha256 of the identity, 64 hex digits."""
        return hashlib.sha256(json.dumps(self.identity, sort_keys=True).encode()).hexdigest()

    def to_dict(self) -> dict[str, Any]:
        return {"identity": self.identity, "extent": self.extent, "execution": self.execution}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> RunConfig:
        return cls(**{name: values.get(name, {}) for name in ("identity", "extent", "execution")})

    def continued(self, previous: RunConfig | None) -> RunConfig:
        """This configuration, with the kinds that earlier runs had and this one leaves out: they stay in the output, so
        a later change of them must be noticed."""
        if previous is None:
            return self
        identity = dict(self.identity)
        for name in ADDITIVE:
            if isinstance(previous.identity.get(name), Mapping):
                identity[name] = {**previous.identity[name], **identity.get(name, {})}
        return RunConfig(identity=identity, extent=self.extent, execution=self.execution)


def compare(old: RunConfig, new: RunConfig) -> list[str]:
    """What changed in the identity, in words: "temperature was 1.0, is 0.7". Empty: the output may be continued."""
    return list(_differences(old.identity, new.identity, ""))


def refuse(old: RunConfig, new: RunConfig, *, output: str) -> None:
    """Raise UserError, saying what changed and what to do, when texts that `output` holds would come out otherwise."""
    changes = compare(old, new)
    if changes:
        told = "; ".join(changes[:6]) + (f"; and {len(changes) - 6} more" if len(changes) > 6 else "")
        raise UserError(
            f"the output was made with another configuration: {told}",
            where=output,
            remedy="add --restart to start over, or name another output",
        )


def _differences(old: Mapping[str, Any], new: Mapping[str, Any], before: str):
    for name in sorted(old.keys() | new.keys()):
        was, now = old.get(name, _ABSENT), new.get(name, _ABSENT)
        if was == now:
            continue
        path = f"{before}.{name}" if before else name
        if isinstance(was, Mapping) and isinstance(now, Mapping):
            if not before and name in ADDITIVE:
                common = was.keys() & now.keys()
                yield from _differences({k: was[k] for k in common}, {k: now[k] for k in common}, path)
            else:
                yield from _differences(was, now, path)
        else:
            yield f"{path} was {_said(was)}, is {_said(now)}"


def _said(value: Any) -> str:
    if value is _ABSENT or value is None:
        return "not set"
    if isinstance(value, str) and _HASH.fullmatch(value):
        return value[:12]
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 60 else text[:57] + "..."
