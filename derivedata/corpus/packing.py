"""Documents packed into blocks of equal length for a language model's trainer, with their boundaries.

A block is a dict of tensors (sequence_length,), as `transformers` models take them: `input_ids`; `labels`, the same ids
with -100 where nothing is to be learnt (padding of the very last block); `position_ids`, which begin again with each
document, and by which transformers keeps documents from seeing each other (with `use_cache=False`, as its Trainer has
it); `document_ids`, 0, 1, ... within the block, -1 for padding, for a mask of one's own.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from torch.utils.data import IterableDataset, get_worker_info

from derivedata.errors import UserError

if TYPE_CHECKING:
    from derivedata.corpus.stream import DocumentStream
    from derivedata.corpus.token_files import TokenReader

RUN_TOKENS = 1 << 20  # tokens of a run of blocks, the unit that is dealt out to ranks and workers
BATCH_CHARS = 1 << 20
IGNORED = -100


class Blocks(IterableDataset):
    """What both kinds of blocks share: who reads what, and where to go on.

    Runs of blocks (of token shards) or windows of documents (of texts) are dealt out round robin over ranks, and within
    a rank over the workers of a DataLoader, so that all of them together read everything once.

    Args:
        sequence_length: tokens of a block.
        eos: the id that ends each document, and pads the last block.
        fingerprint: of what is read and in which order.
        pieces: how many runs or windows there are.
        rank, world_size: this process among those that train together.
    """

    def __init__(self, *, sequence_length: int, eos: int, fingerprint: str, pieces: int, rank: int, world_size: int):
        super().__init__()
        if sequence_length < 1:
            raise UserError("must be 1 or more", where="sequence_length", value=sequence_length)
        if not 0 <= rank < world_size:
            raise UserError("must be 0 or more, and below world_size", where="rank", value=rank)
        self.sequence_length, self.eos, self.pieces = sequence_length, eos, pieces
        self.rank, self.world_size = rank, world_size
        self.fingerprint = fingerprint
        self._start: dict[str, Any] | None = None
        self._place: dict[str, Any] = {}

    def state_dict(self) -> dict[str, Any]:
        """Where the next block begins, of the iteration under way (in a worker: of that worker)."""
        return self._told() | {"place": dict(self._place)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Let the next iteration begin where `state` was taken.

        Raises:
            UserError: the state is of other content, another order, other blocks, or another share.
        """
        if not isinstance(state, dict) or "place" not in state:
            raise UserError("not a state of this loader", value=type(state).__name__)
        told = self._told()
        for name, said in (
            ("fingerprint", "was taken from other content or another order"),
            ("sequence_length", "is of blocks of another length"),
            ("share", "is of another rank, worker, or number of them"),
        ):
            if state.get(name) != told[name]:
                raise UserError(
                    f"the state {said}",
                    where=name,
                    value=f"{state.get(name)}, here {told[name]}",
                    remedy="load it with what it was taken from, or begin without it",
                )
        self._start = dict(state["place"])

    def __iter__(self) -> Iterator[dict[str, Any]]:
        start, self._start = self._start or {}, None
        self._place = dict(start)
        yield from self._blocks(range(self._share()[0], self.pieces, self._share()[1]), start)
        self._place = {}

    def _share(self) -> tuple[int, int]:
        """The first piece of this process, and the step to its next one."""
        worker = get_worker_info()
        number, workers = (worker.id, worker.num_workers) if worker else (0, 1)
        return self.rank + self.world_size * number, self.world_size * workers

    def _told(self) -> dict[str, Any]:
        names = {"fingerprint": self.fingerprint, "sequence_length": self.sequence_length}
        return names | {"share": list(self._share())}

    def _blocks(self, pieces: Sequence[int], start: dict[str, Any]) -> Iterator[dict[str, Any]]:
        raise NotImplementedError

    def _dress(self, ids: np.ndarray, padding: int = 0) -> Iterator[dict[str, Any]]:
        """Blocks of tensors from ids (blocks, sequence_length); `padding` tokens at the end of the last are none."""
        import torch

        ids = ids.astype(np.int64)
        begins = np.zeros(ids.shape, bool)
        begins[:, 1:] = ids[:, :-1] == self.eos
        if padding:
            begins[-1, -padding:] = False
        places = np.arange(self.sequence_length)
        positions = places - np.maximum.accumulate(np.where(begins, places, 0), axis=1)
        documents = np.cumsum(begins, axis=1)
        labels = ids
        if padding:
            labels = ids.copy()
            labels[-1, -padding:] = IGNORED
            documents[-1, -padding:] = -1
        for block in zip(*(torch.from_numpy(one) for one in (ids, labels, positions, documents)), strict=True):
            yield dict(zip(("input_ids", "labels", "position_ids", "document_ids"), block, strict=True))

    def _padded(self, ids: np.ndarray) -> tuple[np.ndarray, int]:
        """Ids (blocks, sequence_length), filled up with eos, and how many were filled in."""
        padding = -len(ids) % self.sequence_length
        if padding:
            ids = np.concatenate([ids, np.full(padding, self.eos, ids.dtype)])
        return ids.reshape(-1, self.sequence_length), padding


class TokenBlocks(Blocks):
    """Blocks of token shards: block i is tokens [i * sequence_length, (i + 1) * sequence_length) of them all.

    The last block is filled up, so that no token is lost. `len()` is the number of blocks of this rank.
    """

    def __init__(self, reader: TokenReader, *, fingerprint: str, sequence_length: int, eos: int, rank: int, world: int):
        self.reader = reader
        self.run = max(1, RUN_TOKENS // max(1, sequence_length)) * sequence_length
        super().__init__(
            sequence_length=sequence_length,
            eos=eos,
            fingerprint=fingerprint,
            pieces=-(-reader.tokens // self.run),
            rank=rank,
            world_size=world,
        )

    def __len__(self) -> int:
        own = (min(self.run, self.reader.tokens - n * self.run) for n in range(self.rank, self.pieces, self.world_size))
        return sum(-(-tokens // self.sequence_length) for tokens in own)

    def _blocks(self, pieces: Sequence[int], start: dict[str, Any]) -> Iterator[dict[str, Any]]:
        skip = start.get("block", 0)
        for turn in range(start.get("piece", 0), len(pieces)):
            first = pieces[turn] * self.run
            ids = self.reader.read(first + skip * self.sequence_length, min(first + self.run, self.reader.tokens))
            for number, block in enumerate(self._dress(*self._padded(ids)), start=skip + 1):
                self._place = {"piece": turn, "block": number}
                yield block
            skip = 0


class TextBlocks(Blocks):
    """Blocks of a stream of documents that are tokenised on the way, in the order of the stream.

    Args:
        stream: the documents.
        encode: texts -> ids of each, without special tokens; it must be picklable where workers are spawned.
    """

    def __init__(
        self,
        stream: DocumentStream,
        encode: Callable[[Sequence[str]], Sequence[Sequence[int]]],
        *,
        fingerprint: str,
        sequence_length: int,
        eos: int,
        rank: int,
        world: int,
    ):
        self.stream, self.encode = stream, encode
        super().__init__(
            sequence_length=sequence_length,
            eos=eos,
            fingerprint=fingerprint,
            pieces=stream.windows,
            rank=rank,
            world_size=world,
        )

    def _blocks(self, pieces: Sequence[int], start: dict[str, Any]) -> Iterator[dict[str, Any]]:
        # Ids that belong to no block yet, as [turn, document, ids already used, ids].
        waiting: deque[list] = deque()
        ready = 0
        for turn, number, ids in self._documents(pieces, start):
            used = start.get("ids", 0) if (turn, number) == (start.get("piece", 0), start.get("document", 0)) else 0
            waiting.append([turn, number, used, ids])
            ready += len(ids) - used
            while ready >= self.sequence_length:
                block = self._take(waiting, self.sequence_length)
                ready -= self.sequence_length
                self._place = _next_place(waiting, turn, number)
                yield from self._dress(block[None])
        if ready:
            block = self._take(waiting, ready)
            self._place = {"piece": len(pieces), "document": 0, "ids": 0}
            yield from self._dress(*self._padded(block))

    def _documents(self, pieces: Sequence[int], start: dict[str, Any]) -> Iterator[tuple[int, int, np.ndarray]]:
        """(turn, number in the window, ids with the end) of each document of these windows."""
        skip = start.get("document", 0)
        for turn in range(start.get("piece", 0), len(pieces)):
            texts = [document.text for document in self.stream.read(pieces[turn])]
            at = skip
            while at < len(texts):
                stop, chars = at, 0
                while stop < len(texts) and (stop == at or chars < BATCH_CHARS):
                    chars += len(texts[stop])
                    stop += 1
                for number, ids in enumerate(self.encode(texts[at:stop]), start=at):
                    yield turn, number, np.array([*ids, self.eos], np.int64)
                at = stop
            skip = 0

    @staticmethod
    def _take(waiting: deque[list], count: int) -> np.ndarray:
        pieces = []
        while count:
            entry = waiting[0]
            taken = entry[3][entry[2] : entry[2] + count]
            pieces.append(taken)
            entry[2] += len(taken)
            count -= len(taken)
            if entry[2] == len(entry[3]):
                waiting.popleft()
        return np.concatenate(pieces)


def _next_place(waiting: deque[list], turn: int, number: int) -> dict[str, int]:
    """Where the next block begins: at an id of a waiting document, or with the document after the last one read."""
    if waiting:
        turn, number, used, _ = waiting[0]
        return {"piece": turn, "document": number, "ids": used}
    return {"piece": turn, "document": number + 1, "ids": 0}
