"""Corpora, repeats and mixes as Hugging Face datasets: fixed features, the exact order of the stream, exact resuming.

    import derivedata
    mix = derivedata.load_mixture("mix", streaming=True)             # a datasets.IterableDataset
    for document in mix: ...
    state = mix.state_dict()                                         # and later mix.load_state_dict(state)

A streaming dataset has a shard for each window of the stream (about 16 MB of text), so `datasets` deals out windows to
the workers of a DataLoader, and going on reads no more than the window in which it stopped.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import orjson
from datasets import Dataset, DatasetInfo, Features, IterableDataset, NamedSplit, Value
from datasets.iterable_dataset import _BaseExamplesIterable

from derivedata.corpus.document import DOLMA_FIELDS
from derivedata.corpus.stream import DocumentStream, open_stream
from derivedata.errors import UserError

if TYPE_CHECKING:
    from derivedata.corpus.document import Document
    from derivedata.corpus.stream import Origin

# The same for every corpus. metadata and extra (fields outside Dolma's layout) are JSON texts, since sources disagree
# on the types in them; strategy, style, epoch and mix_source say how the document came into the stream.
FEATURES = Features(
    {name: Value("string") for name in ("id", "text", "source", "added", "created", "metadata", "extra", "uid")}
    | {"strategy": Value("string"), "style": Value("string"), "epoch": Value("int32"), "mix_source": Value("string")}
)


def load_corpus(
    path: str | os.PathLike | Sequence[str],
    split: str = "train",
    *,
    style: str | None = None,
    strategy: str | None = None,
    streaming: bool = False,
    rank: int = 0,
    world_size: int = 1,
    cache_dir: str | None = None,
) -> Dataset | IterableDataset:
    """The documents of a place as a Hugging Face dataset, in the place's own order.

    Args:
        path: a Dolma corpus, an output of ours, a subset, a repeat or a mix, virtual or not.
        split: `train`, or the name of a folder in `path` that holds another split.
        style, strategy: of an output of ours, only these documents.
        streaming: an IterableDataset that reads as it goes; else a Dataset, written to the cache of `datasets` once.
        rank, world_size: of processes that train together, the windows of this one (round robin).
        cache_dir: of `datasets`, where not streaming.

    Raises:
        UserError: nothing is there, or not that style or split.
    """
    stream = open_stream(_place(path, split), style=style, strategy=strategy)
    return as_dataset(stream, split, streaming=streaming, rank=rank, world_size=world_size, cache_dir=cache_dir)


def load_mixture(
    path: str | os.PathLike,
    split: str = "train",
    *,
    streaming: bool = False,
    rank: int = 0,
    world_size: int = 1,
    cache_dir: str | None = None,
) -> Dataset | IterableDataset:
    """A mix that `derivedata mix` made, like `load_corpus`; `mix_source` names the source of each document.

    Raises:
        UserError: `path` is no mix.
    """
    _refuse_unless_mix(os.fspath(path))
    stream = open_stream(_place(path, split))
    return as_dataset(stream, split, streaming=streaming, rank=rank, world_size=world_size, cache_dir=cache_dir)


def as_dataset(
    stream: DocumentStream,
    split: str = "train",
    *,
    streaming: bool,
    rank: int = 0,
    world_size: int = 1,
    cache_dir: str | None = None,
) -> Dataset | IterableDataset:
    """A stream as a dataset; see `load_corpus`."""
    if not 0 <= rank < world_size:
        raise UserError("must be 0 or more, and below world_size", where="rank", value=rank)
    windows = tuple(range(rank, stream.windows, world_size))
    if streaming:
        examples = WindowExamples(stream, windows)
        return IterableDataset(examples, info=DatasetInfo(features=FEATURES), split=NamedSplit(split))
    # A tuple, since `datasets` takes lists for shards that it may cut.
    kept = {"stream": stream, "windows": windows}
    return Dataset.from_generator(
        read_examples, features=FEATURES, gen_kwargs=kept, split=NamedSplit(split), cache_dir=cache_dir
    )


def read_examples(stream: DocumentStream, windows: Sequence[int]) -> Iterator[dict[str, Any]]:
    """The documents of some windows as rows of FEATURES."""
    for window in windows:
        for document, origin in stream.read_with_origin(window):
            yield example_of(document, origin)


def example_of(document: Document, origin: Origin) -> dict[str, Any]:
    """A row of FEATURES."""
    fields = document.fields
    others = {key: value for key, value in fields.items() if key not in DOLMA_FIELDS}
    return {
        "id": _as_text(fields.get("id")),
        "text": fields["text"],
        "source": _as_text(fields.get("source")),
        "added": _as_text(fields.get("added")),
        "created": _as_text(fields.get("created")),
        "metadata": _as_json(fields.get("metadata")),
        "extra": _as_json(others) if others else None,
        "uid": document.uid,
        "strategy": origin.strategy,
        "style": origin.style,
        "epoch": origin.epoch,
        "mix_source": origin.source,
    }


class WindowExamples(_BaseExamplesIterable):
    """The windows of a stream as the shards of an IterableDataset.

    The order is the stream's in every epoch of `datasets`: to see documents in another order, repeat them in one. Its
    state is a place in the order, and names the content and the share of the windows that it is a place in.
    """

    def __init__(self, stream: DocumentStream, windows: Sequence[int]):
        super().__init__()
        self.stream, self.windows = stream, tuple(windows)
        self._sleep_on_threads_shutdown = False

    @property
    def is_typed(self) -> bool:
        return True

    @property
    def features(self) -> Features:
        return FEATURES

    @property
    def num_shards(self) -> int:
        return len(self.windows)

    @property
    def share(self) -> list[int]:
        """Which windows these are: how many, the first, and the step to the next."""
        step = self.windows[1] - self.windows[0] if len(self.windows) > 1 else 0
        return [len(self.windows), self.windows[0] if self.windows else 0, step]

    def __iter__(self) -> Iterator[tuple[str, dict[str, Any]]]:
        state = self._state_dict
        if state and state["share"] != self.share:
            raise UserError(
                "the state is of another rank, worker, or number of them",
                value=f"{state['share']}, here {self.share}",
                remedy="go on with as many as it was taken with",
            )
        first, skip = (state["shard_idx"], state["shard_example_idx"]) if state else (0, 0)
        for turn in range(first, len(self.windows)):
            window = self.windows[turn]
            documents = self.stream.read_with_origin(window)
            for number in range(skip, len(documents)):
                if state:
                    state["shard_example_idx"] = number + 1
                yield f"{window}_{number}", example_of(*documents[number])
            skip = 0
            if state:
                state["shard_idx"], state["shard_example_idx"] = turn + 1, 0

    def shuffle_data_sources(self, generator: Any) -> WindowExamples:
        return self

    def shard_data_sources(self, num_shards: int, index: int, contiguous: bool = True) -> WindowExamples:
        chosen = self.split_shard_indices_by_worker(num_shards, index, contiguous=contiguous)
        return WindowExamples(self.stream, [self.windows[number] for number in chosen])

    def reshard_data_sources(self) -> WindowExamples:
        return self

    def _init_state_dict(self) -> dict[str, Any]:
        self._state_dict = {
            "fingerprint": self.stream.fingerprint,
            "share": self.share,
            "shard_idx": 0,
            "shard_example_idx": 0,
            "type": type(self).__name__,
        }
        return self._state_dict

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> dict[str, Any]:
        """Go on from a state. Raises UserError for one of other content, another order, or another dataset."""
        state = self._init_state_dict()
        if not isinstance(state_dict, Mapping) or not state.keys() <= state_dict.keys():
            raise UserError("the state is not one of a corpus of derivedata", remedy="begin without it")
        if state_dict["fingerprint"] != self.stream.fingerprint:
            told = f"{str(state_dict['fingerprint'])[:12]}, here {self.stream.fingerprint[:12]}"
            raise UserError(
                "the state was taken from other content or another order",
                value=told,
                remedy="load the corpus or mix that it was taken from, or begin without it",
            )
        # In place: `datasets` holds on to this very mapping. The share is checked when reading begins, since `datasets`
        # also loads a worker's state into the whole before it cuts out the worker's part.
        state.update({name: state_dict[name] for name in state})
        return state


def _place(path: str | os.PathLike | Sequence[str], split: str) -> str | Sequence[str]:
    """Where a split is: `train` is the place itself, another one a folder in it."""
    if split == "train":
        return os.fspath(path) if isinstance(path, (str, os.PathLike)) else list(path)
    if isinstance(path, (str, os.PathLike)):
        from derivedata.store.paths import Folder

        folder = Folder(path)
        if folder.names(f"{split}/"):
            return folder.url_of(split)
    raise UserError("there is no such split", where=path, value=split, remedy="train is always there")


def _refuse_unless_mix(path: str) -> None:
    from derivedata.store.paths import Folder
    from derivedata.store.runs import current_run

    record = current_run(Folder(path))
    job = record.identity.get("job") if record else None
    if job != "mix":
        raise UserError(
            "is no mix" if job is None else f"was made by {job} and is no mix",
            where=path,
            remedy="make one with derivedata mix, or use load_corpus",
        )


def _as_text(value: object) -> str | None:
    return value if value is None or isinstance(value, str) else _as_json(value)


def _as_json(value: object) -> str | None:
    if value is None:
        return None
    try:
        return orjson.dumps(value).decode()
    except TypeError:  # an integer beyond 64 bits
        return json.dumps(value, ensure_ascii=False)
