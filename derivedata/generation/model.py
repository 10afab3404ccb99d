"""Which model: the embedded one, a folder, or one from the Hugging Face hub; always a folder in the end."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from derivedata.errors import UserError
from derivedata.generation import embedded, hardware
from derivedata.generation.tokenizer import load_tokenizer

__all__ = ["GPU_DEFAULT", "ModelFolder", "default_model", "load_tokenizer", "resolve_model", "resolve_tokenizer"]

GPU_DEFAULT = "HuggingFaceTB/SmolLM2-1.7B-Instruct"
_HUB_ID = re.compile(r"(?P<name>[\w.-]+/[\w.-]+)(@(?P<revision>[\w./-]+))?")
# What vLLM and a tokenizer need; repositories also hold copies in other formats, of the same size again.
_WANTED = ["*.safetensors", "*.json", "*.jinja", "tokenizer*", "*.model", "*.tiktoken", "*.txt"]
_TOKENIZER = ["config.json", "*token*.json", "*.jinja", "*.model", "*.tiktoken", "vocab*", "merges.txt"]
_UNWANTED = ["onnx/*", "*/onnx/*", "original/*", "runs/*", "*.gguf"]


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelFolder:
    """A model on this machine."""

    path: Path  # holds config.json, weights and tokenizer
    name: str  # what derived documents name it
    revision: str  # the hub's commit, or a hash of what the folder holds
    is_embedded: bool = False

    @property
    def context(self) -> int:
        """Positions the model was made for, in tokens; 2048 where its config doesn't say."""
        config = json.loads((self.path / "config.json").read_text("utf-8"))
        config = config.get("text_config") or config
        for key in ("max_position_embeddings", "n_positions", "max_sequence_length", "seq_length"):
            if isinstance(config.get(key), int):
                return config[key]
        return 2048


def default_model() -> str:
    """The model for this machine: a 1.7B one where vLLM can use a GPU, else the embedded 135M one."""
    gpu = hardware.vllm_build() == "cuda" and hardware.visible_gpus() > 0
    return GPU_DEFAULT if gpu else embedded.NAME


def resolve_model(name: str | None = None, *, progress: Callable[[str], None] | None = None) -> ModelFolder:
    """Find, prepare or download a model.

    Args:
        name: `smollm2-135m` (embedded), a folder, or a hub id, with `@revision` if need be; None takes `default_model`.
        progress: called with lines for people while something takes time.

    Raises:
        UserError: there is no such model, it is incomplete, or the hub cannot be reached.
    """
    name = name or default_model()
    if name == embedded.NAME:
        path, revision = embedded.prepare_embedded(progress)
        return ModelFolder(path=path, name=name, revision=revision, is_embedded=True)
    folder = Path(name).expanduser()
    if folder.is_dir():
        return _from_folder(folder)
    if folder.is_absolute() or name.startswith((".", "~")):
        raise UserError("there is no such model folder", where=name)
    match = _HUB_ID.fullmatch(name)
    if match is None:
        raise UserError(
            "not a model",
            value=name,
            remedy=f"use {embedded.NAME}, a folder with config.json, or a hub id such as {GPU_DEFAULT}",
        )
    return _from_hub(match["name"], match["revision"], progress)


def resolve_tokenizer(name: str) -> ModelFolder:
    """Like `resolve_model`, for a tokenizer alone: no weights are downloaded, and a folder needs no config.json."""
    folder = Path(name).expanduser()
    if folder.is_dir() and any((folder / file).is_file() for file in ("tokenizer.json", "tokenizer_config.json")):
        folder = folder.resolve()
        return ModelFolder(path=folder, name=folder.name, revision=f"folder-sha256:{_fingerprint(folder)}")
    match = _HUB_ID.fullmatch(name)
    if match is not None and not folder.exists():
        return _from_hub(match["name"], match["revision"], None, wanted=_TOKENIZER)
    return resolve_model(name)


def _from_folder(folder: Path) -> ModelFolder:
    folder = folder.resolve()
    if not (folder / "config.json").is_file():
        raise UserError("the model folder has no config.json", where=folder, remedy="name the folder that holds it")
    return ModelFolder(path=folder, name=folder.name, revision=f"folder-sha256:{_fingerprint(folder)}")


def _fingerprint(folder: Path) -> str:
    """A hash of names, sizes, small files, and head and tail of large ones: cheap, and any retraining changes it."""
    digest = hashlib.sha256()
    for file in sorted(folder.iterdir()):
        if not file.is_file() or file.name.startswith("."):
            continue
        size = file.stat().st_size
        digest.update(f"{file.name}\0{size}\0".encode())
        with file.open("rb") as handle:
            if size <= 1 << 24:
                digest.update(handle.read())
                continue
            digest.update(handle.read(1 << 20))
            handle.seek(size // 2)
            digest.update(handle.read(1 << 20))
            handle.seek(size - (1 << 20))
            digest.update(handle.read())
    return digest.hexdigest()


def _from_hub(
    name: str, revision: str | None, progress: Callable[[str], None] | None, *, wanted: list[str] = _WANTED
) -> ModelFolder:
    # The hub library's bars would tear our own progress line.
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import (
        GatedRepoError,
        HfHubHTTPError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    if progress:
        progress(f"looking for {name} in the hub's cache, downloading it if need be")
    offline = "a model folder or smollm2-135m work without the hub"
    try:
        path = Path(snapshot_download(name, revision=revision, allow_patterns=wanted, ignore_patterns=_UNWANTED))
    except GatedRepoError:
        raise UserError("the hub wants a login for this model", where=name, remedy="set HF_TOKEN") from None
    except RevisionNotFoundError:
        raise UserError("the hub has no such revision", where=name, value=revision) from None
    except RepositoryNotFoundError:
        raise UserError(
            "the hub has no such model", where=name, remedy="check the name; a private one needs HF_TOKEN"
        ) from None
    except LocalEntryNotFoundError:
        raise UserError(
            "the hub cannot be reached, and the model is not in its cache", where=name, remedy=offline
        ) from None
    except (HfHubHTTPError, OSError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise UserError(f"the model could not be downloaded: {reason}", where=name, remedy=offline) from None
    if not (path / "config.json").is_file():
        raise UserError("the hub's repository has no config.json: not a transformers model", where=name)
    return ModelFolder(path=path, name=name, revision=path.name)
