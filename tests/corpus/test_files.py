"""What a corpus is made of: folders, files, globs, URLs, and the root its paths start from."""

import gzip
import os

import pytest

from derivedata.corpus.files import corpus_files
from derivedata.corpus.inventory import take_inventory
from derivedata.errors import UserError
from tests.corpus.shards import ids, lines, read, reasons


def put(root, *names: str) -> None:
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(lines(0, 1))


def paths(*sources: object) -> list[str]:
    return [file.path for file in corpus_files([str(source) for source in sources])]


def test_a_folder_is_every_shard_below_it(tmp_path):
    put(tmp_path, "b.jsonl", "a/deep/x.json.gz", "c.ndjson.zst", "d.parquet", "README.md", "notes.txt", "run.yaml")
    assert paths(tmp_path) == ["a/deep/x.json.gz", "b.jsonl", "c.ndjson.zst", "d.parquet"]


def test_documents_is_found_by_itself_and_is_the_root(tmp_path):
    put(tmp_path, "documents/a.jsonl", "documents/style=faq/b.jsonl", "run.json", "attributes/pii/a.jsonl")
    assert paths(tmp_path) == paths(tmp_path / "documents") == ["a.jsonl", "style=faq/b.jsonl"]


def test_what_stands_beside_documents_is_passed_over(tmp_path):
    for name in ("manifest", "attributes", "rejected", "journal", "ledger", "plan", "progress", "logs", ".git", "_tmp"):
        put(tmp_path, f"{name}/x.jsonl")
    put(tmp_path, "deeper/plan/x.jsonl", "a.jsonl", ".hidden.jsonl", "_SUCCESS.json")
    assert paths(tmp_path) == ["a.jsonl", "deeper/plan/x.jsonl"]


def test_the_root_of_loose_files_is_their_deepest_common_folder(tmp_path):
    put(tmp_path, "one/two/a.jsonl", "one/two/three/b.jsonl", "one/four/c.jsonl")
    two = tmp_path / "one" / "two"
    assert paths(two / "a.jsonl") == ["a.jsonl"]
    assert paths(two / "a.jsonl", two / "three" / "b.jsonl") == ["a.jsonl", "three/b.jsonl"]
    assert paths(two / "a.jsonl", tmp_path / "one/four/c.jsonl") == ["four/c.jsonl", "two/a.jsonl"]
    assert paths(two, tmp_path / "one" / "four") == ["four/c.jsonl", "two/a.jsonl", "two/three/b.jsonl"]


def test_folders_with_like_names_have_no_common_half_name(tmp_path):
    put(tmp_path, "data1/a.jsonl", "data2/a.jsonl")
    assert paths(tmp_path / "data1", tmp_path / "data2") == ["data1/a.jsonl", "data2/a.jsonl"]


def test_globs(tmp_path):
    put(tmp_path, "a-1.jsonl", "a-2.jsonl", "b-1.jsonl", "deep/er/a-3.jsonl", "a-4.txt")
    assert paths(tmp_path / "a-*") == ["a-1.jsonl", "a-2.jsonl"]
    assert paths(tmp_path / "**" / "a-*.jsonl") == ["a-1.jsonl", "a-2.jsonl", "deep/er/a-3.jsonl"]


def test_a_file_named_twice_is_read_once(tmp_path):
    put(tmp_path, "a.jsonl")
    assert paths(tmp_path / "a.jsonl", tmp_path / "*.jsonl", tmp_path) == ["a.jsonl"]


def test_a_file_named_by_the_user_may_have_any_name(tmp_path):
    put(tmp_path, "corpus.txt")
    [file] = corpus_files([str(tmp_path / "corpus.txt")])
    assert ids(read(file)[0]) == ["d0", "d1"]


def test_names_may_hold_spaces_and_odd_characters(tmp_path):
    put(tmp_path, "a b/#%?.jsonl", "größe.jsonl")
    assert paths(tmp_path) == ["a b/#%?.jsonl", "größe.jsonl"]
    assert all(len(read(file)[0]) == 2 for file in corpus_files([str(tmp_path)]))


def test_a_link_that_leads_back_up_ends(tmp_path):
    put(tmp_path, "a/x.jsonl")
    os.symlink(tmp_path, tmp_path / "a" / "up")
    assert paths(tmp_path) == ["a/x.jsonl"]


@pytest.mark.parametrize(("one", "other"), [("x.jsonl", "x.jsonl.gz"), ("d/x.json.zst", "d/x.json.gz")])
def test_the_same_file_in_two_compressions_is_refused_by_name(tmp_path, one, other):
    put(tmp_path, one, other)
    with pytest.raises(UserError) as error:
        corpus_files([str(tmp_path)])
    assert one in error.value.line and other in error.value.line


def test_twins_in_different_folders_are_fine(tmp_path):
    put(tmp_path, "a/x.jsonl", "b/x.jsonl.gz", "c/x.json")
    assert len(paths(tmp_path)) == 3


@pytest.mark.parametrize("source", ["", "nothing", "*.jsonl", "s9://bucket/x"])
def test_nothing_found_says_what_was_looked_for(tmp_path, source):
    with pytest.raises(UserError) as error:
        corpus_files([source if "://" in source else str(tmp_path / source)])
    assert source in error.value.line


def test_the_version_changes_with_the_file(tmp_path):
    put(tmp_path, "x.jsonl")
    [before] = corpus_files([str(tmp_path)])
    (tmp_path / "x.jsonl").write_bytes(lines(1, 2))
    os.utime(tmp_path / "x.jsonl", ns=(1, 1))
    [after] = corpus_files([str(tmp_path)])
    assert before.bytes == after.bytes and before.version != after.version


@pytest.fixture
def memory():
    import fsspec

    filesystem = fsspec.filesystem("memory")
    filesystem.store.clear()
    filesystem.pseudo_dirs[:] = [""]
    yield filesystem
    filesystem.store.clear()


def test_other_file_systems_give_the_same_corpus(tmp_path, memory):
    local = tmp_path / "corpus"
    put(local, "documents/a.jsonl", "documents/deep/b.jsonl", "attributes/x/a.jsonl")
    for name in ("documents/a.jsonl", "documents/deep/b.jsonl", "attributes/x/a.jsonl"):
        memory.pipe_file(f"/bucket/corpus/{name}", (local / name).read_bytes())
    remote = corpus_files(["memory://bucket/corpus"])
    assert [file.url for file in remote] == [
        "memory:///bucket/corpus/documents/a.jsonl",
        "memory:///bucket/corpus/documents/deep/b.jsonl",
    ]
    for here, there in zip(corpus_files([str(local)]), remote, strict=True):
        assert (here.path, here.bytes) == (there.path, there.bytes) and there.version
        assert [document.uid for document in read(here)[0]] == [document.uid for document in read(there)[0]]
        here, there = (take_inventory(file, chunk_bytes=1) for file in (here, there))
        assert (here.sha256, here.chunks) == (there.sha256, there.chunks)


def test_globs_and_single_files_on_other_file_systems(memory):
    memory.pipe_file("/bucket/c/a-1.jsonl.gz", gzip.compress(lines(0)))
    memory.pipe_file("/bucket/c/a-2.jsonl", lines(1)[:-5])
    assert paths("memory://bucket/c/a-*") == ["a-1.jsonl.gz", "a-2.jsonl"]
    [file] = corpus_files(["memory://bucket/c/a-2.jsonl"])
    assert (file.path, reasons(read(file)[1])) == ("a-2.jsonl", ["half-line"])


def test_parquet_on_other_file_systems(tmp_path, memory):
    from derivedata.corpus.writer import ShardWriter

    with ShardWriter(tmp_path / "x.parquet", format="parquet") as writer:
        writer.write({"text": "a", "id": "one"})
    memory.pipe_file("/bucket/p/x.parquet", writer.shard.path.read_bytes())
    [file] = corpus_files(["memory://bucket/p"])
    assert ids(read(file)[0]) == ["one"]
    assert take_inventory(file, chunk_bytes=1).sha256 == writer.shard.sha256


def test_a_file_that_goes_away_is_an_expected_failure(tmp_path, memory):
    put(tmp_path, "x.jsonl")
    memory.pipe_file("/bucket/x.jsonl", lines(0))
    for file in corpus_files([str(tmp_path)]) + corpus_files(["memory://bucket"]):
        (tmp_path / "x.jsonl").unlink(missing_ok=True)
        memory.store.clear()
        with pytest.raises(UserError, match=r"x\.jsonl: no such file"):
            read(file)


def test_a_damaged_archive_on_another_file_system(memory):
    damaged = bytearray(gzip.compress(lines(*range(300))))
    damaged[-6] ^= 1
    memory.pipe_file("/bucket/x.jsonl.gz", bytes(damaged) + gzip.compress(lines(1, 2)) * 50)
    documents, rejected = read(*corpus_files(["memory://bucket"]))
    assert (len(documents), reasons(rejected)) == (400, ["corrupt-archive"])


def test_an_output_that_holds_no_documents_yet_is_no_corpus(tmp_path):
    (tmp_path / "manifest").mkdir()
    (tmp_path / "run.json").write_text("{}")
    with pytest.raises(UserError, match="no documents found"):
        corpus_files([str(tmp_path)])
