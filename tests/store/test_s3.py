"""Object storage: an S3 server on loopback that honours conditional puts, spoken to through s3fs."""

from __future__ import annotations

import threading
import uuid

import pytest

from derivedata.errors import UserError
from derivedata.store.compaction import compact
from derivedata.store.lease import Lease
from derivedata.store.ledger import Ledger
from derivedata.store.manifest import Manifest
from derivedata.store.paths import Folder
from derivedata.store.probe import has_conditional_put, warn_unless_conditional
from derivedata.store.query import run_query
from derivedata.store.units import Unit
from tests.store import samples

pytestmark = pytest.mark.faults


@pytest.fixture(scope="module")
def options():
    """Storage options of a running server with the bucket `corpora`."""
    import logging

    import boto3
    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    url = f"http://{host}:{port}"
    keys = {"aws_access_key_id": "test", "aws_secret_access_key": "test", "region_name": "us-east-1"}
    boto3.client("s3", endpoint_url=url, **keys).create_bucket(Bucket="corpora")
    yield {"key": "test", "secret": "test", "client_kwargs": {"endpoint_url": url, "region_name": "us-east-1"}}
    server.stop()


@pytest.fixture
def folder(options) -> Folder:
    return Folder(f"s3://corpora/{uuid.uuid4().hex}", **options)


def test_create_is_a_conditional_put(folder, tmp_path):
    assert folder.create("a/b", b"first")
    assert not folder.create("a/b", b"second")
    (tmp_path / "large").write_bytes(b"x" * (6 << 20))
    assert folder.create_from("large", tmp_path / "large")
    (tmp_path / "other").write_bytes(b"y")
    assert not folder.create_from("large", tmp_path / "other")
    assert folder.read("a/b") == b"first" and len(folder.read("large")) == 6 << 20
    assert has_conditional_put(folder) and folder.names() == ["a/b", "large"]


def test_of_many_writers_one_creates(folder, options):
    start = threading.Barrier(6)
    won = []

    def race(number: int) -> None:
        mine = Folder(folder.url, **options)
        start.wait()
        if mine.create("name", str(number).encode()):
            won.append(str(number).encode())

    threads = [threading.Thread(target=race, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert won == [folder.read("name")]


def test_listing_removing_and_absence(folder):
    for path in ("a/1", "a/2/3", "ab", "b"):
        folder.create(path, path.encode())
    assert [(entry.path, entry.bytes) for entry in folder.list("a/")] == [("a/1", 3), ("a/2/3", 5)]
    assert folder.names("a") == ["a/1", "a/2/3", "ab"] and folder.list("nothing/") == []
    assert folder.list("ab")[0].modified > 1e9
    folder.replace("b", b"new")
    assert folder.read("b") == b"new" and folder.open("b").read() == b"new"
    folder.remove_tree("a")
    folder.remove_many(["ab", "absent", "b"])
    folder.remove("absent")
    assert folder.names() == []
    with pytest.raises(FileNotFoundError):
        folder.read("a/1")


def test_what_others_commit_is_seen_at_once(folder, options):
    other = Folder(folder.url, skip_instance_cache=True, **options)  # a client of its own, as another process has
    folder.create("room/a", b"")
    assert other.names() == ["room/a"] and not other.exists("room/x")
    folder.create("room/x", b"")
    assert other.names("room/") == ["room/a", "room/x"] and other.exists("room/x")


def test_a_missing_bucket_and_wrong_keys_are_one_line(options):
    with pytest.raises(UserError, match=r"s3://nosuchbucket/a/x: there is no such file, folder or bucket"):
        Folder("s3://nosuchbucket/a", **options).create("x", b"")


def test_a_unit_is_committed_once(folder, options):
    unit = Unit(0, 0, 2, 0, 1, samples.STYLES)
    first, second = Ledger(folder), Ledger(Folder(folder.url, **options))
    for ledger, name in ((first, "a"), (second, "b")):
        with ledger.journal(unit) as journal:
            for key in samples.keys(unit):
                journal.append({"key": key, "text": f"{key} by {name}"})
    one, two = first.decide(unit, keys=4), second.decide(unit, keys=4)
    assert one == two
    assert [samples.materialise(second, two), samples.materialise(first, one)] == [True, False]
    assert first.committed() == [unit] and len({t[-1] for t in samples.read_back(folder).values()}) == 1
    assert folder.names("journal/") == folder.names("ledger/") == []


def test_manifest_compaction_and_query(folder):
    samples.work(Ledger(folder), range(3))
    before = Manifest(folder).summary().to_dict()
    assert compact(folder, grace=-1) == 3  # the server's clock has whole seconds
    assert folder.names("manifest/units/") == []
    assert Manifest(folder).summary().to_dict() == before
    samples.work(Ledger(folder), [3])
    assert len(samples.read_back(folder)) == 16
    sql = "SELECT style, count(*) AS n FROM documents d JOIN shards s ON s.path = d.shard GROUP BY ALL ORDER BY ALL"
    with pytest.raises(UserError, match="Ambiguous"):
        run_query({"c": folder}, sql)
    assert run_query(
        {"c": folder}, "SELECT style, count(*) AS n FROM documents GROUP BY ALL ORDER BY ALL"
    ).to_pylist() == [
        {"style": "faq", "n": 8},
        {"style": "table", "n": 8},
    ]


def test_leases(folder):
    with Lease(folder, "one"), pytest.raises(UserError, match="another command is writing"):
        Lease(folder, "two").__enter__()


def test_a_server_that_ignores_the_condition_is_said(folder, monkeypatch):
    put = folder.fs.pipe_file

    def ignoring(path, data, mode="overwrite"):
        return put(path, data)

    monkeypatch.setattr(folder.fs, "pipe_file", ignoring)
    with pytest.warns(UserWarning, match="ignores conditional puts, so two writers at the same moment"):
        assert not warn_unless_conditional(folder)


def test_transient_faults_are_waited_for(folder, monkeypatch):
    faults = iter([OSError(16, "SlowDown"), TimeoutError("slow")])
    put = folder.fs.pipe_file
    folder._pause = 0.001

    def flaky(path, data, mode="overwrite"):
        if (fault := next(faults, None)) is not None:
            raise fault
        return put(path, data, mode=mode)

    monkeypatch.setattr(folder.fs, "pipe_file", flaky)
    assert folder.create("x", b"1") and next(faults, None) is None


def test_storage_that_never_answers_is_one_line(folder, monkeypatch):
    def dead(path, data, mode="overwrite"):
        raise ConnectionError("Could not connect to the endpoint")

    folder._pause = 0.0001
    monkeypatch.setattr(folder.fs, "pipe_file", dead)
    with pytest.raises(UserError, match="the storage does not answer"):
        folder.create("x", b"1")
