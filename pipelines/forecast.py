"""What a paraphrase would take and give, said before it is run: `derivedata paraphrase ... --dry-run`.

A sample of the documents is planned as the run itself would plan it; nothing is written and no server is started. One
that runs already (--endpoint) is asked a few words, to see what it takes.
"""

from __future__ import annotations

import heapq
import math
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from derivedata.corpus.document import without_compression
from derivedata.corpus.files import CorpusFile, corpus_files
from derivedata.corpus.reader import RejectedRow, read_rows
from derivedata.pipelines.job import check_context, find_model, rate_name
from derivedata.pipelines.paraphrase import ParaphraseStage
from derivedata.pipelines.paraphrase_options import ParaphraseOptions, resolve_config
from derivedata.pipelines.rates import known_rate
from derivedata.pipelines.source import keyed
from derivedata.store.units import Unit

SAMPLE_DOCUMENTS = 512
SAMPLE_BYTES = 64 << 20  # of the input's files, read whole
TEXT_OF_ONE_FILE = 256 << 20  # of a single file, at most
# Of the tokens a generation may have, the share that is used, where nothing was measured.
ASSUMED_LENGTH = 0.5


@dataclass(frozen=True, kw_only=True, slots=True)
class Forecast:
    """What a run would do. Counts of the whole job; they are estimates unless `exact`."""

    documents: int
    exact: bool
    sampled: int
    requests: int
    skipped: int
    prompt_tokens: int
    shared_tokens: int  # of the prompt tokens, those that an earlier request of the same document has computed
    source_tokens: int
    new_tokens: int
    measured_length: bool  # new tokens a request from an earlier run with this model and style, not assumed
    rate: float | None  # new tokens a second
    rate_from: str

    @property
    def hours(self) -> float | None:
        """Hours of generation; None where no rate is known."""
        return None if self.rate is None else self.new_tokens / self.rate / 3600


def forecast_paraphrase(
    options: ParaphraseOptions, *, rate: float | None = None, say: Callable[[str], None] | None = None
) -> Forecast:
    """Plan a sample of the job and scale it up.

    Args:
        options: the job.
        rate: new tokens a second to reckon with; default what this machine measured with this model before.
        say: hears what servers of somebody else's were found to take.
    """
    files = corpus_files(options.corpus)
    model, connection = find_model(options, options.samplings(), say=say)
    config = resolve_config(options, model, options.chosen_styles(), connection=connection)
    check_context(config.context, connection)
    stage = ParaphraseStage(
        config=config, files=files, output=options.output, endpoint_file="", window=1, run_id="dry-run"
    )
    sample, documents, exact = _sample(files, config.seed)
    unit = Unit(0, 0, max(1, len(sample)), 0, config.rewrites, stage.kinds)
    planned = stage.plan(unit, sample, 0)
    asked = [one for one in planned if one.outcome is None]
    measured = known_rate(rate_name(model, connection))
    new = sum(measured.lengths.get(one.info["style"], ASSUMED_LENGTH * one.sampling.max_tokens) for one in asked)
    if options.documents is not None:
        documents = min(documents, options.documents)
    scale = documents / max(1, len(sample))
    if config.tokens is not None and new * scale > config.tokens:
        scale *= config.tokens / (new * scale)
    first = {(one.info["uid"], one.info["piece"]): one.prompt_tokens for one in reversed(asked)}
    prompt_tokens = sum(one.prompt_tokens for one in asked)
    return Forecast(
        documents=math.ceil(scale * len(sample)),
        exact=exact and len(sample) == documents and config.tokens is None,
        sampled=len(sample),
        requests=math.ceil(scale * len(asked)),
        skipped=round(scale * (len(planned) - len(asked))),
        prompt_tokens=round(scale * prompt_tokens),
        shared_tokens=round(scale * max(0, prompt_tokens - sum(first.values()))),
        source_tokens=round(scale * sum({one.info["uid"]: one.info["source_tokens"] for one in planned}.values())),
        new_tokens=round(scale * new),
        measured_length=bool(asked) and all(one.info["style"] in measured.lengths for one in asked),
        rate=rate or measured.rate,
        rate_from="as given" if rate else "measured here before" if measured.rate else "unknown: give one with --rate",
    )


def _sample(files: list[CorpusFile], seed: int) -> tuple[list, int, bool]:
    """A random sample of the documents, how many there are, and whether that is counted or estimated."""
    kept: list[tuple[bytes, int, object]] = []
    counted, read = 0, 0
    # Files in a random order, whole, until enough bytes are read.
    for file in sorted(files, key=lambda file: keyed(seed, file.path)):
        if read and read + file.bytes > SAMPLE_BYTES:
            break
        text = 0
        for document in _documents(file):
            counted += 1
            text += len(document.text)
            entry = (keyed(seed, document.uid), counted, document)
            if len(kept) < SAMPLE_DOCUMENTS:
                heapq.heappush(kept, _inverted(entry))
            else:
                heapq.heappushpop(kept, _inverted(entry))
            if text > TEXT_OF_ONE_FILE:
                # One huge file: how much of it this was follows from how its text compresses.
                sample = "".join(one[2].text for one in kept).encode("utf-8", "replace")
                ratio = len(zlib.compress(sample)) / len(sample) if without_compression(file.path) != file.path else 1.0
                read += min(file.bytes, round(text * ratio))
                break
        else:
            read += file.bytes
    total = sum(file.bytes for file in files)
    documents = [entry[2] for entry in kept]
    return documents, counted if read >= total else round(counted * total / max(1, read)), read >= total


def _inverted(entry: tuple[bytes, int, object]) -> tuple[bytes, int, object]:
    """The entry for a heap that drops the largest key first."""
    return bytes(255 - byte for byte in entry[0]), entry[1], entry[2]


def _documents(file: CorpusFile) -> Iterator:
    return (row for row in read_rows(file) if not isinstance(row, RejectedRow))
