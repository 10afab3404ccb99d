"""Nothing that is read runs code: there is no pickle, neither in our code nor where numpy would read one."""

from __future__ import annotations

import io
import re
from pathlib import Path

import numpy as np
import pytest

import derivedata
from derivedata.corpus.blocks import open_blocks
from derivedata.pipelines.subset_run import SubsetOptions, take_subsets
from tests.pipelines.test_source import write_corpus
from tests.tiny_model import write_tiny_model

pytestmark = pytest.mark.faults

READS_PICKLE = re.compile(
    r"\b(pickle|dill|joblib|marshal|shelve)\.(loads?|open)\(|allow_pickle=True|weights_only=False"
    r"|\byaml\.(load|unsafe_load|full_load)\(|read_pickle\("
)


class Bomb:
    def __init__(self, sign: Path):
        self.sign = sign

    def __reduce__(self):
        return (Path.touch, (self.sign,))


def test_no_code_of_ours_reads_pickles():
    root = Path(derivedata.__file__).parents[1]
    files = [path for room in ("derivedata", "pipelines", "trainers") for path in (root / room).rglob("*.py")]
    assert len(files) > 100
    found = [str(path) for path in files if READS_PICKLE.search(path.read_text())]
    assert found == []


def test_an_order_that_holds_a_pickle_is_refused_and_not_run(tmp_path):
    corpus, sign = write_corpus(tmp_path / "in", shards=2, documents=20), tmp_path / "it ran"
    model = write_tiny_model(tmp_path / "model")
    options = {"tokenizer": str(model), "block_bytes": 1_000}
    take_subsets(SubsetOptions(corpus=(str(corpus),), output=str(tmp_path / "sub"), tokens=(1_000,), **options))
    (folder,) = [path for path in (tmp_path / "sub").iterdir() if path.name == "1k"]
    bomb = io.BytesIO()
    np.save(bomb, np.array([Bomb(sign)], object))
    planted = list(folder.rglob("*.npy"))
    for path in planted:
        path.write_bytes(bomb.getvalue())
    assert planted
    with pytest.raises(Exception, match=r"allow_pickle|damaged|changed"):
        open_blocks([str(folder)])
    assert not sign.exists()
