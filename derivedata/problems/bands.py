"""Bands of difficulty by avg@k: the IsoCompute Playbook's easy [0.3, 0.6] and hard [0, 0.0625], or anyone's own.

A band holds its two ends. What is in none is `gap` (between two bands), `above` or `below`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from derivedata.errors import UserError

# Counts are compared with ends such as 0.3 * 16 in floating point.
_SLACK = 1e-9


@dataclass(frozen=True, slots=True)
class Band:
    """Problems whose avg@k lies in [low, high]; `min_k` samples are needed to speak of it."""

    name: str
    low: float
    high: float
    min_k: int = 1


NAMED_BANDS: dict[str, Band] = {
    # arXiv 2603.12151: avg@16 of the base model that will be trained.
    "easy": Band("easy", 0.3, 0.6),
    "hard": Band("hard", 0.0, 0.0625),
    # pass@128 = 0 there; fewer samples can't tell it from hard.
    "extremely-hard": Band("extremely-hard", 0.0, 0.0, 128),
    "very-hard": Band("very-hard", 0.0, 0.0),
    "medium": Band("medium", 0.0625, 0.3),
    "very-easy": Band("very-easy", 0.6, 1.0),
}
NAMED_SETS: dict[str, tuple[str, ...]] = {
    "isocompute": ("hard", "easy"),
    "isocompute-128": ("extremely-hard", "hard", "easy"),
    "five": ("very-hard", "hard", "medium", "easy", "very-easy"),
}


@dataclass(frozen=True, slots=True)
class Bands:
    """Several bands, by rising rate. Where two touch or share counts, the harder one has them."""

    bands: tuple[Band, ...]

    def __post_init__(self):
        names = [band.name for band in self.bands]
        if not names or len(set(names)) != len(names):
            raise UserError("bands need names, each once", value=", ".join(names))
        for band in self.bands:
            if not 0 <= band.low <= band.high <= 1:
                raise UserError("a band lies between 0 and 1", where=band.name, value=f"{band.low}:{band.high}")
        for lower, upper in zip(self.bands, self.bands[1:], strict=False):
            if upper.low < lower.high - _SLACK or upper.high <= lower.high:
                raise UserError("two bands overlap", value=f"{lower.name} and {upper.name}")

    @property
    def names(self) -> tuple[str, ...]:
        """All labels that can come out, by rising rate."""
        labels: list[str] = []
        for position, band in enumerate(self.bands):
            if position == 0 and band.low > _SLACK:
                labels.append("below")
            elif position and band.low > self.bands[position - 1].high + _SLACK and "gap" not in labels:
                labels.append("gap")
            labels.append(band.name)
        if self.bands[-1].high < 1 - _SLACK:
            labels.append("above")
        return tuple(labels)

    def label_index(self, rate: np.ndarray) -> np.ndarray:
        """The position in `names` of each rate (any shape); harder bands come first where two touch."""
        rate = np.asarray(rate, float)
        names = self.names
        index = np.full(rate.shape, names.index("above") if "above" in names else len(names) - 1)
        if "gap" in names:
            index[rate < self.bands[-1].low - _SLACK] = names.index("gap")
        if "below" in names:
            index[rate < self.bands[0].low - _SLACK] = names.index("below")
        for band in reversed(self.bands):
            index[(rate >= band.low - _SLACK) & (rate <= band.high + _SLACK)] = names.index(band.name)
        return index

    def labels_of_counts(self, k: int) -> np.ndarray:
        """The position in `names` for each count 0..k of k (shape k + 1)."""
        return self.label_index(np.arange(k + 1) / k)

    def of_true_rates(self) -> np.ndarray:
        """For each label the one that a true rate there has: a band of one rate (0) stands for what lies beside it.

        That 0 of 16 are right says that a rate is small; no true rate is exactly 0 (shape of `names`).
        """
        index = np.arange(len(self.names))
        for band in self.bands:
            if band.low == band.high:
                beside = band.high + 1e-6 if band.high < 1 else band.low - 1e-6
                index[self.names.index(band.name)] = int(self.label_index(np.asarray(beside)))
        return index

    def label(self, rate: float) -> str:
        """The band of one rate, or gap, above, below."""
        return self.names[int(self.label_index(np.asarray(rate)))]

    def check_samples(self, k: int) -> None:
        """Refuse bands that k samples can't tell.

        Raises:
            UserError: a band wants more samples, or no count of k falls into one.
        """
        for band in self.bands:
            if k < band.min_k:
                raise UserError(f"the band {band.name} needs {band.min_k} samples", value=k, remedy="raise --samples")
        reached = set(self.labels_of_counts(k).tolist())
        for band in self.bands:
            if self.names.index(band.name) not in reached:
                raise UserError(
                    f"no count of {k} samples falls into the band {band.name}",
                    value=f"{band.low:g}:{band.high:g}",
                    remedy="raise --samples or widen the band",
                )


def parse_bands(text: str) -> Bands:
    """Read `isocompute`, names (`hard,easy,very-easy`) or own bands (`easy=0.3:0.6,hard=0:0.0625`).

    Raises:
        UserError: the text is none of these, or the bands overlap.
    """
    bands: list[Band] = []
    for part in NAMED_SETS.get(text, text.split(",")):
        name, equals, span = part.strip().partition("=")
        if not equals:
            if name not in NAMED_BANDS:
                known = ", ".join([*NAMED_SETS, *NAMED_BANDS])
                raise UserError("unknown band", value=name, remedy=f"use {known}, or your own as name=0.3:0.6")
            bands.append(NAMED_BANDS[name])
            continue
        low, colon, high = span.partition(":")
        try:
            bands.append(Band(name, float(low), float(high) if colon else float(low)))
        except ValueError:
            raise UserError("a band is written name=0.3:0.6", value=part) from None
        if not name or name in ("gap", "above", "below", "unscored"):
            raise UserError("this can't be the name of a band", value=name)
    return Bands(tuple(sorted(bands, key=lambda band: (band.high, band.low))))
