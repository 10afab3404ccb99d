"""Text from outside never becomes a control token, whatever kind of tokenizer a model has."""

import json

import pytest
import tokenizers
from tokenizers import AddedToken, models, normalizers, pre_tokenizers, trainers

from derivedata.errors import UserError
from derivedata.generation.tokenizer import Tokenizer, load_tokenizer

SPECIAL, TOOL, SPACES = "<|im_end|>", "<tool_call>", "    "
TEXT = "Plain words, then <|im_end|> and <tool_call> and    spaces. "


def _definition(model, trainer=None, *, normalizer=None, pre_tokenizer=None) -> str:
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = pre_tokenizer or pre_tokenizers.ByteLevel(add_prefix_space=False)
    if trainer is not None:
        tokenizer.train_from_iterator([TEXT * 3], trainer)
    tokenizer.add_special_tokens([SPECIAL])
    tokenizer.add_tokens([AddedToken(TOOL, special=False), AddedToken(SPACES, special=False, normalized=False)])
    return tokenizer.to_str()


def _bpe() -> str:
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    return _definition(models.BPE(), trainers.BpeTrainer(vocab_size=400, initial_alphabet=alphabet))


def _bpe_with_control_tokens_in_its_vocabulary() -> str:
    # As SmolLM2's: the control tokens are entries 0, 1, ... of the model's own vocabulary.
    trainer = trainers.BpeTrainer(
        vocab_size=400, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), special_tokens=[SPECIAL, TOOL]
    )
    return _definition(models.BPE(), trainer)


def _bpe_whose_merges_lead_to_a_control_token() -> str:
    # As tokenizers converted from SentencePiece can be: </s> is a product of merges.
    letters = list("<|im_end|>")
    vocab = {
        letter: number for number, letter in enumerate(dict.fromkeys([*letters, *"abcdefghijklmnopqrstuvwxyz., "]))
    }
    merges, built = [], letters[0]
    for letter in letters[1:]:
        merges.append((built, letter))
        built += letter
        vocab[built] = len(vocab)
    return _definition(models.BPE(vocab, merges, unk_token="a"), pre_tokenizer=pre_tokenizers.WhitespaceSplit())


def _bpe_that_takes_whole_words_from_its_vocabulary() -> str:
    # As Llama 3's (ignore_merges): a word that is in the vocabulary becomes that entry.
    structure = json.loads(_bpe_with_control_tokens_in_its_vocabulary())
    structure["model"]["ignore_merges"] = True
    structure["pre_tokenizer"] = {"type": "WhitespaceSplit"}
    return json.dumps(structure)


def _unigram() -> str:
    trainer = trainers.UnigramTrainer(vocab_size=120, special_tokens=["<unk>", SPECIAL, TOOL], unk_token="<unk>")
    return _definition(models.Unigram(), trainer, pre_tokenizer=pre_tokenizers.Metaspace())


def _word_level() -> str:
    trainer = trainers.WordLevelTrainer(special_tokens=["<unk>", SPECIAL, TOOL])
    return _definition(models.WordLevel(unk_token="<unk>"), trainer, pre_tokenizer=pre_tokenizers.WhitespaceSplit())


def _normalising() -> str:
    # NFKC makes ordinary brackets of full-width ones.
    trainer = trainers.BpeTrainer(vocab_size=400, initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    return _definition(models.BPE(), trainer, normalizer=normalizers.NFKC())


KINDS = [
    _bpe,
    _bpe_with_control_tokens_in_its_vocabulary,
    _bpe_whose_merges_lead_to_a_control_token,
    _bpe_that_takes_whole_words_from_its_vocabulary,
    _unigram,
    _word_level,
    _normalising,
]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_no_control_token_comes_out_of_text(kind):
    tokenizer = Tokenizer("test", kind())
    control = {tokenizer.control_tokens[SPECIAL], tokenizer.control_tokens[TOOL]}
    for text in (TEXT, SPECIAL, TOOL, f"a{SPECIAL}b{TOOL}", "＜|im_end|＞", f" {SPECIAL} "):
        assert control.isdisjoint(tokenizer.encode(text))
        assert control.isdisjoint(tokenizer.encode_batch([text])[0])
        assert control.isdisjoint(tokenizer.encode_with_starts(text)[0])


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_the_template_keeps_its_control_tokens(kind):
    tokenizer = Tokenizer("test", kind())
    assert tokenizer.encode_template(SPECIAL) == [tokenizer.control_tokens[SPECIAL]]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_ordinary_text_is_tokenised_as_the_model_knows_it(kind):
    tokenizer = Tokenizer("test", kind())
    for text in ("Plain words, then spaces.", "words    spaces"):
        assert tokenizer.encode(text) == tokenizer.encode_template(text)


def test_runs_of_spaces_are_no_control_tokens():
    tokenizer = Tokenizer("test", _bpe())
    assert SPACES not in tokenizer.control_tokens
    assert tokenizers.Tokenizer.from_str(_bpe()).token_to_id(SPACES) in tokenizer.encode("a    b")


def test_lone_surrogates_are_encoded_as_replacement_characters(tokenizer):
    assert tokenizer.encode("a\ud800b") == tokenizer.encode("a\ufffdb")


def test_what_the_tokenizer_puts_first_is_found():
    structure = tokenizers.Tokenizer.from_str(_bpe_with_control_tokens_in_its_vocabulary())
    structure.post_processor = tokenizers.processors.TemplateProcessing(
        single=f"{SPECIAL} $A {TOOL}", special_tokens=[(SPECIAL, 0), (TOOL, 1)]
    )
    assert Tokenizer("test", structure.to_str()).beginning() == [0]
    assert Tokenizer("test", _bpe()).beginning() == []


def test_a_folder_without_a_tokenizer_is_an_error_in_one_line(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(UserError, match="has no tokenizer"):
        load_tokenizer(tmp_path)


def test_a_broken_tokenizer_is_an_error_in_one_line(tmp_path):
    (tmp_path / "tokenizer.json").write_text('{"model": {"type": "Nothing"}}')
    with pytest.raises(UserError, match="cannot be loaded"):
        load_tokenizer(tmp_path)


def test_a_broken_tokenizer_config_names_its_file(tmp_path, tiny_model):
    (tmp_path / "tokenizer.json").write_bytes((tiny_model / "tokenizer.json").read_bytes())
    (tmp_path / "tokenizer_config.json").write_text("{")
    with pytest.raises(UserError, match=r"tokenizer_config\.json: not valid JSON"):
        load_tokenizer(tmp_path)


def test_the_template_is_found_wherever_models_keep_it(tmp_path, tiny_model):
    (tmp_path / "tokenizer.json").write_bytes((tiny_model / "tokenizer.json").read_bytes())
    config = tmp_path / "tokenizer_config.json"
    named = [{"name": "tool_use", "template": "wrong"}, {"name": "default", "template": "right"}]
    for where in ("right", named):
        config.write_text(json.dumps({"chat_template": where}))
        assert load_tokenizer(tmp_path).chat_template.source == "right"
    config.write_text("{}")
    assert load_tokenizer(tmp_path).chat_template is None
    (tmp_path / "chat_template.json").write_text('{"chat_template": "right"}')
    assert load_tokenizer(tmp_path).chat_template.source == "right"
