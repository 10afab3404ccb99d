"""How many tokens of each source a mix takes: arithmetic alone, in OLMo-core's meanings.

A source may give `tokens x max_source_fraction x max_repetition_ratio`; it must give `requested_tokens x target_ratio`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from derivedata.errors import UserError
from derivedata.pipelines.mix_spec import MixSource


@dataclass(frozen=True, kw_only=True, slots=True)
class Population:
    """What a source holds that may be used: documents and tokens once, after fraction and lineage.

    `most` is how often it may come: max_repetition_ratio, or what a virtual repeat has.
    """

    source: MixSource
    documents: int
    tokens: int
    most: float

    @property
    def limit(self) -> int:
        """Tokens that it may give at most."""
        return int(self.tokens * self.most)


@dataclass(frozen=True, kw_only=True, slots=True)
class Share:
    """What a source gives: tokens, as whole passes and the tokens of one more."""

    population: Population
    tokens: int

    @property
    def epochs(self) -> int:
        return self.tokens // self.population.tokens if self.population.tokens else 0

    @property
    def rest(self) -> int:
        return self.tokens - self.epochs * self.population.tokens


def most_tokens(populations: Sequence[Population]) -> int:
    """The largest mix that has these ratios within the limits of every source."""
    return min(math.floor(one.limit / one.source.target_ratio + 1e-6) for one in populations)


def share_out(populations: Sequence[Population], requested: int | None) -> list[Share]:
    """What each source gives.

    Raises:
        UserError: a source can't give so much; with the numbers, and what would do.
    """
    most = most_tokens(populations)
    total = most if requested is None else requested
    for one in populations:
        needed, source = int(total * one.source.target_ratio), one.source
        if needed > one.limit or not one.tokens:
            have = f"{one.tokens:,} tokens"
            if source.max_source_fraction < 1:
                have += f" (max_source_fraction {source.max_source_fraction:g})"
            remedy = f"these ratios and limits allow requested_tokens up to {most:,}"
            if one.tokens:
                remedy += f"; or raise max_repetition_ratio to {math.ceil(100 * needed / one.tokens) / 100:g}"
            raise UserError(
                f"needs {needed:,} tokens ({source.target_ratio:g} of {total:,}), and may give {one.limit:,}: "
                f"{have} x {one.most:g}",
                where=f"source {source.source_name}",
                remedy=remedy,
            )
    return [Share(population=one, tokens=int(total * one.source.target_ratio)) for one in populations]
