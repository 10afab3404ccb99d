"""What `derivedata mix` is asked for and what a mixture gives: options, the portion of each source, the sums."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from derivedata.corpus.stream_mix import MixStream
from derivedata.corpus.windows import WINDOW_BYTES
from derivedata.errors import refuse_below_one
from derivedata.pipelines.mix_plan import Share
from derivedata.pipelines.mix_spec import MixSpec


@dataclass(frozen=True, kw_only=True, slots=True)
class MixOptions:
    """What `derivedata mix` takes; see its --help."""

    spec: str
    output: str
    tokens: int | None = None  # in place of the file's requested_tokens
    materialize: bool = False
    format: str = "jsonl.zst"
    window_bytes: int = WINDOW_BYTES
    windows_per_shard: int = 8
    tasks: int = 1
    workers: int | None = None
    restart: bool = False

    def __post_init__(self) -> None:
        refuse_below_one(self, "tokens", "tasks", "workers", "window_bytes")


@dataclass(frozen=True, kw_only=True, slots=True)
class Portion:
    """What the mix takes of a source: `epochs` whole passes and `extra` documents of one more."""

    share: Share
    is_derived: bool
    strategy: str
    orphans: int  # documents left out because they were derived from none of the fresh part
    epochs: int
    extra: int

    @property
    def documents(self) -> int:
        return self.epochs * self.share.population.documents + self.extra


@dataclass(frozen=True, kw_only=True, slots=True)
class Mixture:
    """What a mix gives."""

    portions: Sequence[Portion]
    tokenizer: str
    stream: MixStream
    spec: MixSpec
    contaminated: Mapping[str, int] = field(default_factory=dict)  # documents left out, by evaluation file

    @property
    def tokens(self) -> int:
        return sum(portion.share.tokens for portion in self.portions)

    def by_strategy(self) -> tuple[int, dict[str, int]]:
        """Fresh tokens (D) and derived ones (D') by strategy; what comes again is a repeat."""
        fresh, derived = 0, {}
        for portion in self.portions:
            once = min(portion.share.tokens, portion.share.population.tokens)
            again = portion.share.tokens - once
            if portion.is_derived:
                derived[portion.strategy] = derived.get(portion.strategy, 0) + once
            else:
                fresh += once
            if again:
                derived["repeat"] = derived.get("repeat", 0) + again
        return fresh, derived
