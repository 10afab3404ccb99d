"""The unit: what is committed at once, its name, and which units a wanted output still lacks."""

from __future__ import annotations

import hashlib
import itertools
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache

from derivedata.errors import UserError

_NAME = re.compile(r"(\d{6,})\.(\d{6,})-(\d{6,})\.r(\d+)-(\d+)\.([0-9a-f]{8})")


def kinds_hash(kinds: Iterable[str]) -> str:
    """Eight hex digits that stand for a set of kinds in a unit's name."""
    return hashlib.sha256("\n".join(sorted(kinds)).encode()).hexdigest()[:8]


@lru_cache(256)
def _normal_kinds(kinds: tuple[str, ...]) -> tuple[str, ...]:
    normal = tuple(sorted(set(kinds)))
    if not normal or any(not kind or "\n" in kind for kind in normal):
        raise ValueError(f"a unit needs kinds without line breaks: {kinds}")
    return normal


@dataclass(frozen=True, slots=True, order=True)
class Unit:
    """A box of work: documents [first, stop) of a chunk's seeded order, rewrites (or samples) [low, high), all `kinds`.

    Kinds are sorted: two writers that name them in another order mean the same unit.
    """

    chunk: int
    first: int
    stop: int
    low: int
    high: int
    kinds: tuple[str, ...]

    def __post_init__(self) -> None:
        if not (self.chunk >= 0 and 0 <= self.first < self.stop and 0 <= self.low < self.high):
            raise ValueError(f"an empty or impossible unit: {self}")
        # A resume makes a hundred thousand units of a handful of sets of kinds.
        object.__setattr__(self, "kinds", _normal_kinds(tuple(self.kinds)))

    @property
    def name(self) -> str:
        """The file name stem of all that belongs to the unit."""
        span = f"{self.first:06d}-{self.stop:06d}.r{self.low}-{self.high}"
        return f"{self.chunk:06d}.{span}.{kinds_hash(self.kinds)}"

    @property
    def documents(self) -> int:
        return self.stop - self.first

    @property
    def rewrites(self) -> int:
        return self.high - self.low

    @classmethod
    def parse(cls, name: str, kinds: Mapping[str, tuple[str, ...]]) -> Unit:
        """The unit of a name; `kinds` says which kinds a hash stands for. Raises UserError for a foreign name."""
        match = _NAME.fullmatch(name)
        if match is None:
            raise UserError("not the name of a unit", value=name)
        if match[6] not in kinds:
            raise UserError(f"manifest/kinds/{match[6]}.json is missing, which says what unit {name} holds")
        return cls(*(int(match[i]) for i in range(1, 6)), kinds[match[6]])

    def overlaps(self, other: Unit) -> bool:
        """Whether a key belongs to both units."""
        return (
            self.chunk == other.chunk
            and self.first < other.stop
            and other.first < self.stop
            and self.low < other.high
            and other.low < self.high
            and not set(self.kinds).isdisjoint(other.kinds)
        )

    def within(self, other: Unit) -> bool:
        """Whether all keys of this unit belong to the other."""
        return (
            self.chunk == other.chunk
            and other.first <= self.first
            and self.stop <= other.stop
            and other.low <= self.low
            and self.high <= other.high
            and set(self.kinds) <= set(other.kinds)
        )


def is_unit_name(name: str) -> bool:
    """Whether a name is one that `Unit.name` gives (the parts of other stages have other names)."""
    return _NAME.fullmatch(name) is not None


def missing(
    committed: Iterable[Unit],
    *,
    chunk: int,
    documents: int,
    kinds: Iterable[str],
    rewrites: int,
    started: Iterable[Unit] = (),
) -> list[Unit]:
    """The units that, with those committed, make the wanted output of a chunk: each wanted key once, none twice.

    Wanted are documents [0, documents), rewrites [0, rewrites) in each of `kinds`. Raising any of them, or adding a
    kind, gives the rest. Units of `started` (a journal exists, nothing is committed) that lie within what is missing
    are kept as they are, so that their finished requests are not asked for again.

    The result does not change shape when some of it is committed: documents are cut only at edges of committed (or
    kept) units, which all result units keep. So two writers that start at different moments never hold units that
    overlap in part.
    """
    wanted_kinds = tuple(sorted(set(kinds)))
    if documents <= 0 or rewrites <= 0 or not wanted_kinds:
        return []
    whole = Unit(chunk, 0, documents, 0, rewrites, wanted_kinds)
    committed = list(committed)
    if any(whole.within(unit) for unit in committed):
        return []
    taken = [unit for unit in committed if unit.overlaps(whole)]
    kept: list[Unit] = []
    for unit in sorted(set(started)):
        if unit.within(whole) and not any(unit.overlaps(other) for other in (*taken, *kept)):
            kept.append(unit)
    taken += kept
    edges = sorted({0, documents} | {edge for u in taken for edge in (u.first, u.stop) if edge < documents})
    groups: dict[tuple[int, int, int, int], list[str]] = {}
    for first, stop in itertools.pairwise(edges):
        here = [unit for unit in taken if unit.first < stop and first < unit.stop]
        for kind in wanted_kinds:
            spans = sorted((unit.low, unit.high) for unit in here if kind in unit.kinds)
            for low, high in _gaps(spans, rewrites):
                groups.setdefault((first, stop, low, high), []).append(kind)
    found = [Unit(chunk, *box, tuple(names)) for box, names in groups.items()]
    return sorted(found + kept)


def _gaps(spans: list[tuple[int, int]], stop: int) -> Iterable[tuple[int, int]]:
    """What [0, stop) holds beside the sorted `spans`."""
    reached = 0
    for low, high in spans:
        if low >= stop:
            break
        if low > reached:
            yield reached, low
        reached = max(reached, high)
    if reached < stop:
        yield reached, stop
