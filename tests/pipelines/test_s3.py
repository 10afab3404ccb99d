"""Paraphrase end to end on object storage: input and output at s3://, and no key anywhere in the output."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from derivedata.corpus.files import corpus_files
from derivedata.corpus.reader import read_rows
from derivedata.errors import UserError
from derivedata.pipelines.repair import repair_corpus
from derivedata.pipelines.run import paraphrase_corpus
from derivedata.pipelines.status import read_status
from derivedata.pipelines.verify import verify_corpus
from derivedata.store.manifest import Manifest
from derivedata.store.paths import Folder
from tests.cluster.s3 import KEY, SECRET, s3_server
from tests.fake_server import FakeServer
from tests.pipelines.fakes import MODEL, job, serve_at
from tests.pipelines.test_source import write_corpus

pytestmark = pytest.mark.faults


@pytest.fixture(scope="module")
def bucket():
    with s3_server() as url:
        yield url


@pytest.fixture(scope="module")
def engine(tiny_model):
    with FakeServer(tokenizer=tiny_model, model=MODEL) as server:
        yield serve_at(server.endpoint.url)


@pytest.fixture(scope="module")
def made(bucket, engine, tiny_model, tmp_path_factory):
    """The same corpus paraphrased on disk and in the bucket."""
    place = tmp_path_factory.mktemp("s3")
    local = write_corpus(place / "in", shards=2, documents=8)
    remote = Folder(f"{bucket}/in")
    for path in sorted((local / "documents").iterdir()):
        remote.create(f"documents/{path.name}", path.read_bytes())
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DERIVEDATA_CACHE", str(place / "cache"))
        paraphrase_corpus(job(local, place / "out", tiny_model, styles=("faq", "table")), serve=engine)
        # Paths of the tests' helper are local ones: an address is given as it is.
        options = job(f"{bucket}/in", f"{bucket}/out", tiny_model, styles=("faq", "table"))
        paraphrase_corpus(options, serve=engine)
    return place / "out", f"{bucket}/out"


def texts(output):
    return {row.id: row.text for file in corpus_files([str(output)]) for row in read_rows(file)}


def test_it_is_the_same_as_on_disk(made):
    local, remote = made
    assert texts(local) == texts(remote) != {}
    assert Manifest(local).books() == Manifest(remote).books()
    assert verify_corpus(remote).problems == []
    seen = read_status(remote)
    assert seen.state == "done" and seen.planned == seen.wanted == 32


def test_no_key_is_in_the_output(made):
    _, remote = made
    folder = Folder(remote)
    for path in folder.names():
        data = folder.read(path)
        assert KEY.encode() not in data and SECRET.encode() not in data, path
    assert folder.names("logs/") and folder.exists("run.json")


def test_it_goes_on_and_is_repaired_there_too(made, engine, tiny_model, bucket):
    local, remote = made
    folder = Folder(remote)
    folder.remove(folder.names("documents/")[0])
    folder.replace(folder.names("manifest/documents/")[0], b"damaged")
    repaired = repair_corpus(remote, serve=engine)
    assert repaired.verified.problems == [] and texts(local) == texts(remote)


@pytest.mark.parametrize(
    ("output", "words"),
    [("s3://nosuchbucket/out", "s3://nosuchbucket.*: there is no such file, folder or bucket")],
)
def test_a_bucket_that_is_not_there_is_one_line(made, bucket, engine, tiny_model, output, words):
    with pytest.raises(UserError, match=words):
        paraphrase_corpus(job(f"{bucket}/in", output, tiny_model), serve=engine)
    with pytest.raises(UserError, match="s3://nosuchbucket/in"):
        paraphrase_corpus(job("s3://nosuchbucket/in", f"{bucket}/new", tiny_model), serve=engine)


def test_without_keys_it_is_said_in_one_line(bucket):
    environment = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
    environment |= {
        "AWS_ENDPOINT_URL": os.environ["AWS_ENDPOINT_URL"],
        "AWS_EC2_METADATA_DISABLED": "true",
        "HOME": "/nonexistent",
    }
    command = [sys.executable, "-m", "derivedata", "manifest", f"{bucket}/out"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 1 and "no credentials for this storage" in done.stderr, done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_keys_that_are_refused_are_one_line(bucket, engine, tiny_model, monkeypatch):
    def refusing(*args, **options):
        raise PermissionError("InvalidAccessKeyId")

    folder = Folder(f"{bucket}/out")
    monkeypatch.setattr(type(folder.fs), "find", refusing)
    with pytest.raises(UserError, match=r"permission denied\. Check the owner and mode, or the credentials"):
        verify_corpus(f"{bucket}/out")
