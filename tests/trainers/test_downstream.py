"""A trained model on text and tasks of one's own."""

import json
import math

import pytest
import torch

from derivedata.errors import UserError
from derivedata.trainers.downstream import Item, open_model, read_lambada, read_squad, score_task, score_text
from derivedata.trainers.vocabulary import ByteTokenizer
from tests.tiny_model import write_tiny_model
from tests.trainers.corpora import TINY, write_fresh

BYTES = ByteTokenizer()


class Parrot(torch.nn.Module):
    """Expects that each byte is the one that followed it in the alphabet."""

    def __init__(self):
        super().__init__()
        self.config = type("Config", (), {"max_position_embeddings": 32})()
        self.weight = torch.nn.Parameter(torch.zeros(1))

    def forward(self, input_ids, use_cache):
        logits = torch.nn.functional.one_hot((input_ids + 1) % 257, 257) * 20.0
        return type("Output", (), {"logits": logits})()


@pytest.fixture
def model(tmp_path):
    torch.manual_seed(0)
    TINY.model(257, 64).save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def test_an_item_is_right_when_every_token_of_its_target_is(tmp_path):
    items = [Item("abc", "def"), Item("abc", "deg"), Item("z" * 90 + "m", "no")]
    score = score_task("alphabet", items, Parrot(), BYTES, batch=2)
    assert score.accuracy.value == pytest.approx(2 / 3)
    assert score.accuracy.low < 2 / 3 < score.accuracy.high
    # Two right items cost nothing, the wrong letter about 20 nats; 8 bytes in all.
    assert score.nats.value == pytest.approx(20 / 3, rel=1e-3)
    assert score.bits_per_byte == pytest.approx(20 / math.log(2) / 8, rel=1e-3)


def test_items_are_scored_alike_whatever_stands_beside_them(model):
    found, tokenizer = open_model(str(model), None, "cpu")
    items = [Item("the quick", " fox"), Item("a", " b"), Item("some longer context than that", " word")]
    together = score_task("x", items, found, tokenizer, batch=3).nats.value
    alone = [score_task("x", [item], found, tokenizer).nats.value for item in items]
    assert together == pytest.approx(sum(alone) / 3, rel=1e-5)


def test_lambada_asks_for_the_last_word(tmp_path):
    path = tmp_path / "lambada.jsonl"
    path.write_text('{"text": "she opened the door"}\n\n{"text": "he ran home "}\n')
    assert read_lambada(path) == [Item("she opened the", " door"), Item("he ran", " home")]
    path.write_text('{"text": "she opened the door"}\n{"text": "one"}\n')
    with pytest.raises(UserError, match=r"lambada\.jsonl:2: not a line of LAMBADA"):
        read_lambada(path)


def test_squad_asks_for_the_first_answer(tmp_path):
    asked = [
        {"question": "Who?", "answers": [{"text": "Ada", "answer_start": 0}, {"text": "A", "answer_start": 0}]},
        {"question": "Why?", "answers": [], "is_impossible": True},
    ]
    path = tmp_path / "dev.json"
    path.write_text(json.dumps({"data": [{"paragraphs": [{"context": "Ada wrote it.", "qas": asked}]}]}))
    assert read_squad(path) == [Item("Ada wrote it.\n\nQuestion: Who?\nAnswer:", " Ada")]
    path.write_text("{}")
    with pytest.raises(UserError, match="not in the format of SQuAD"):
        read_squad(path)
    with pytest.raises(UserError, match="cannot be read"):
        read_squad(tmp_path / "absent.json")


def test_text_is_scored_by_source(model, tmp_path):
    found, tokenizer = open_model(str(model), None, "cpu")
    fresh = write_fresh(tmp_path / "fresh", 8)
    losses, bits, tokens = score_text([str(fresh)], found, tokenizer, tokens=2_000, length=64)
    assert set(bits) == {"all", "source:books", "source:web"}
    assert losses["all"] == pytest.approx(math.log(257), abs=0.1)
    assert tokens == 2_000 // 64 * 64


def test_a_tokenizer_of_another_vocabulary_is_refused(model, tmp_path):
    with pytest.raises(UserError, match="vocabulary is smaller"):
        open_model(str(model), str(write_tiny_model(tmp_path / "tiny")), "cpu")
    with pytest.raises(UserError, match="no model here"):
        open_model(str(tmp_path / "elsewhere"), None, "cpu")


def test_the_command_prints_what_was_scored(model, tmp_path):
    from click.testing import CliRunner

    from derivedata.cli.train import train

    (tmp_path / "l.jsonl").write_text('{"text": "she opened the door"}\n{"text": "he ran home"}\n')
    words = ["score", str(model), "--lambada", str(tmp_path / "l.jsonl"), "--device", "cpu"]
    told = CliRunner().invoke(train, words, catch_exceptions=False).output
    assert "LAMBADA" in told and "0.0% [0.0%, 65.8%]" in told
