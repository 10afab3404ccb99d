"""Round trips to object storage are made side by side: the next block, the next file, the puts of a commit."""

from __future__ import annotations

import hashlib
import threading

import pytest

from derivedata.corpus import source
from derivedata.corpus.source import Source, forget_soon, open_soon
from derivedata.errors import UserError
from derivedata.pipelines.ingest import IngestOptions, ingest
from derivedata.pipelines.verify import verify_corpus
from derivedata.store.ledger import Ledger
from derivedata.store.manifest import Manifest
from derivedata.store.paths import Folder
from derivedata.store.units import Unit
from tests.cluster.s3 import s3_server
from tests.pipelines.test_source import write_corpus
from tests.store import samples

pytestmark = pytest.mark.faults
CONTENT = bytes(range(256)) * 4096  # 1 MiB


@pytest.fixture(scope="module")
def bucket():
    with s3_server() as url:
        yield url


@pytest.fixture
def large(bucket, monkeypatch):
    """A file of ten blocks and a bit."""
    monkeypatch.setattr(source, "BLOCK_BYTES", 100_000)
    Folder(bucket).create("large", CONTENT)
    return f"{bucket}/large"


@pytest.mark.parametrize("offset", [0, 1, 99_999, 250_000, len(CONTENT)])
def test_a_file_is_read_whole_from_any_byte(large, offset):
    digest = hashlib.sha256()
    with Source(large, offset, digest) as opened:
        opened.drain()
        assert opened.offset == len(CONTENT)
    assert digest.digest() == hashlib.sha256(CONTENT[offset:]).digest()


def test_a_file_opened_soon_is_read_once_from_its_start(large):
    open_soon(large)
    open_soon(large)
    with Source(large) as opened:
        assert opened.read_exactly(1000) == CONTENT[:1000]
    assert not source._opening


def test_an_empty_file_and_one_that_is_not_there(bucket):
    Folder(bucket).create("empty", b"")
    for name in ("empty", "absent"):
        open_soon(f"{bucket}/{name}")
    with Source(f"{bucket}/empty") as opened:
        assert opened.read() == b""
    with pytest.raises(UserError, match="no such file"):
        Source(f"{bucket}/absent")


def test_what_was_opened_for_nothing_is_let_go_of(bucket, large):
    open_soon(large)
    open_soon(f"{bucket}/absent")
    forget_soon()
    assert not source._opening


def test_the_files_of_a_commit_are_put_together_and_before_it_counts(bucket, tmp_path, monkeypatch):
    unit = Unit(0, 0, 4, 0, 1, samples.STYLES)
    part = samples.part(tmp_path, unit, {key: key for key in samples.keys(unit)})
    meet, order = threading.Barrier(3, timeout=20), []
    create, create_from = Folder.create, Folder.create_from

    def noting(action):
        def call(self, path, content):
            if not path.startswith("manifest/units/"):
                meet.wait()  # two shards and their index; breaks when one waits for another to end
            created = action(self, path, content)
            order.append(path)
            return created

        return call

    folder = Folder(f"{bucket}/together")
    monkeypatch.setattr(Folder, "create", noting(create))
    monkeypatch.setattr(Folder, "create_from", noting(create_from))
    assert Ledger(folder).publish(unit.name, part)
    assert len(order) > 2 and order[-1].startswith("manifest/units/")


def test_nothing_is_committed_after_a_piece_that_was_not(tmp_path, monkeypatch):
    """Pieces are made while the one before is committed; what is committed says where the next one begins."""
    write_corpus(tmp_path / "in", shards=1, documents=60)
    wanted = IngestOptions(sources=(str(tmp_path / "in"),), output=str(tmp_path / "out"), chunk_bytes=2_000)
    publish, calls = Ledger.publish, []

    def failing(self, name, part):
        calls.append(name)
        if len(calls) == 3:
            raise OSError("no more")
        return publish(self, name, part)

    with monkeypatch.context() as patch:
        patch.setattr(Ledger, "publish", failing)
        with pytest.raises(OSError, match="no more"):
            ingest(wanted)
    assert len(calls) == 3 and Manifest(tmp_path / "out").units().height == 2
    assert ingest(wanted).summary.documents == 60
    assert verify_corpus(str(tmp_path / "out")).problems == []
