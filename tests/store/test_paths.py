"""Folders: create-if-absent and friends, on a local disk and in memory."""

from __future__ import annotations

import errno
import os
import pickle
import subprocess
import sys
import threading

import pytest

from derivedata.errors import UserError
from derivedata.store.lease import Lease
from derivedata.store.paths import Folder, Missing, check_relative


def test_create_gives_a_name_to_one_writer_only(tmp_path):
    folder = Folder(tmp_path)
    assert folder.create("a/b.txt", b"first")
    assert not folder.create("a/b.txt", b"second")
    assert folder.read("a/b.txt") == b"first"


def test_of_many_threads_one_creates(tmp_path):
    folder = Folder(tmp_path)
    start = threading.Barrier(8)
    won = []

    def race(number: int) -> None:
        start.wait()
        if folder.create("name", str(number).encode()):
            won.append(str(number).encode())

    threads = [threading.Thread(target=race, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert won == [folder.read("name")]


def test_create_from_takes_a_local_file(tmp_path):
    folder = Folder(tmp_path / "out")
    with folder.scratch() as scratch:
        (scratch / "x").write_bytes(b"shard")
        assert folder.create_from("documents/x", scratch / "x")
        assert not folder.create_from("documents/x", scratch / "x")
    assert folder.read("documents/x") == b"shard"


def test_create_from_another_file_system_copies(tmp_path, monkeypatch):
    folder = Folder(tmp_path / "out")
    (tmp_path / "x").write_bytes(b"shard")
    link = os.link

    def refuse_foreign(source, target):
        if "/.tmp/" not in os.fspath(source):
            raise OSError(errno.EXDEV, "Invalid cross-device link")
        return link(source, target)

    monkeypatch.setattr(os, "link", refuse_foreign)
    assert folder.create_from("x", tmp_path / "x")
    assert folder.read("x") == b"shard"


def test_a_file_system_without_links_is_said_and_still_refuses_taken_names(tmp_path, monkeypatch):
    folder = Folder(tmp_path)

    def no_links(source, target):
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", no_links)
    with pytest.warns(UserWarning, match="no hard links, so two writers"):
        assert folder.create("a", b"1")
    assert not folder.create("a", b"2")
    assert folder.read("a") == b"1"


def test_nothing_of_a_failed_write_is_left(tmp_path, monkeypatch):
    folder = Folder(tmp_path)

    def full(handle):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(UserError, match=r"no space left\. Free some space and run the same command again"):
        folder.create("a/b", b"1")
    assert folder.list() == [] and list(tmp_path.rglob("*b")) == [] and not any((tmp_path / ".tmp").iterdir())


@pytest.mark.parametrize(
    ("number", "said"),
    [
        (errno.EACCES, "permission denied"),
        (errno.EROFS, "the file system is read-only"),
        (errno.EDQUOT, "no space left"),
        (errno.EIO, "the storage does not answer"),
    ],
)
def test_faults_are_one_line_with_the_place(tmp_path, monkeypatch, number, said):
    folder = Folder(tmp_path)

    def fail(*_args, **_kwargs):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "link", fail)
    with pytest.raises(UserError, match=said) as caught:
        folder.create("a/b", b"1")
    assert "a/b" in caught.value.line and "\n" not in caught.value.line


def test_a_file_where_a_folder_should_be_is_said(tmp_path):
    folder = Folder(tmp_path)
    folder.create("a", b"1")
    with pytest.raises(UserError, match="a file and a folder want the same name"):
        folder.create("a/b", b"2")


def test_replace_overwrites(tmp_path):
    folder = Folder(tmp_path)
    folder.replace("run.json", b"1")
    folder.replace("run.json", b"22")
    assert folder.read("run.json") == b"22"


@pytest.mark.parametrize("root", ["local", "memory"])
def test_listings(root, tmp_path):
    folder = Folder(tmp_path if root == "local" else f"memory://{tmp_path}")
    with pytest.warns(UserWarning, match="no conditional put") if root == "memory" else _nothing():
        for path in ("a/1", "a/2/3", "ab", "b"):
            folder.create(path, path.encode())
    assert [entry.path for entry in folder.list()] == ["a/1", "a/2/3", "ab", "b"]
    assert [(entry.path, entry.bytes) for entry in folder.list("a/")] == [("a/1", 3), ("a/2/3", 5)]
    assert [entry.path for entry in folder.list("a")] == ["a/1", "a/2/3", "ab"]
    assert folder.names("a/2/") == ["a/2/3"]
    assert folder.list("nothing/here/") == [] and folder.names("nope") == []
    assert folder.list("b")[0].modified is not None


def _nothing():
    import contextlib

    return contextlib.nullcontext()


def test_the_scratch_place_is_in_no_listing_and_is_swept(tmp_path):
    folder = Folder(tmp_path)
    (tmp_path / ".tmp" / "left-by-a-kill").mkdir(parents=True)
    (tmp_path / ".tmp" / "file").write_bytes(b"half")
    assert folder.list() == []
    folder.sweep_scratch(older_than=3600)
    assert len(list((tmp_path / ".tmp").iterdir())) == 2
    folder.sweep_scratch(older_than=-1)
    assert list((tmp_path / ".tmp").iterdir()) == []


def test_scratch_of_a_killed_process_goes_at_once_and_that_of_a_living_one_stays(tmp_path):
    code = (
        "import sys, time\nfrom derivedata.store.paths import Folder\n"
        "with Folder(sys.argv[1]).scratch():\n    print('ready', flush=True)\n    time.sleep(600)"
    )
    folder, left = Folder(tmp_path), tmp_path / ".tmp"
    with folder.scratch() as mine:
        child = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, text=True)
        assert child.stdout.readline() == "ready\n"
        folder.sweep_scratch()
        assert len(list(left.iterdir())) == 2
        child.kill()
        child.communicate()
        with Lease(folder, "run"):
            assert list(left.iterdir()) == [mine]
    assert list(left.iterdir()) == []


def test_absent_files(tmp_path):
    folder = Folder(tmp_path)
    assert not folder.exists("x")
    folder.remove("x")
    folder.remove_tree("x")
    with pytest.raises(FileNotFoundError):
        folder.read("x")
    with pytest.raises(UserError, match="x: there is no such file"):
        folder.open("x")


def test_remove_tree_and_many(tmp_path):
    folder = Folder(tmp_path)
    for path in ("a/1", "a/2", "b/1", "c"):
        folder.create(path, b"")
    folder.remove_tree("a")
    folder.remove_many(["b/1", "b/absent"])
    assert folder.names() == ["c"]


@pytest.mark.parametrize(
    "name", ["../x", "a/../x", "/etc/passwd", "", ".", "a//b", "a/./b", "a\\b", "a\nb", "a\x00b", "a/"]
)
def test_names_cannot_leave_the_folder(tmp_path, name):
    with pytest.raises(UserError, match="not a path inside the folder"):
        check_relative(name)
    for method in ("read", "remove", "url_of", "exists"):
        with pytest.raises(UserError):
            getattr(Folder(tmp_path), method)(name)


def test_urls(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert Folder("out").url_of("a/b") == f"{tmp_path}/out/a/b"
    assert Folder(f"file://{tmp_path}").url_of("a") == f"{tmp_path}/a"
    assert Folder("memory://x/y").url_of("a") == "memory:///x/y/a"
    with pytest.raises(UserError, match="cannot open this kind of address"):
        Folder("nonsense://x")


def test_a_folder_can_be_pickled(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = Folder("out")
    folder.create("a", b"1")
    monkeypatch.chdir("/")
    assert pickle.loads(pickle.dumps(folder)).read("a") == b"1"


def test_missing_crosses_processes_as_itself():
    error = pickle.loads(pickle.dumps(Missing("gone", where="x")))
    assert isinstance(error, FileNotFoundError) and error.line == "x: gone"


def test_below_a_file_there_is_nothing_to_read(tmp_path):
    (tmp_path / "x.jsonl").write_text("{}\n")
    folder = Folder(tmp_path / "x.jsonl")
    with pytest.raises(Missing):
        folder.read("run.json")
    with pytest.raises(Missing):
        folder.open("run.json")
    assert not folder.exists("run.json")
