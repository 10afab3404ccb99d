"""The models of the ladder have the parameters that the paper's have."""

import pytest

from derivedata.errors import UserError
from derivedata.trainers.ladder import LADDER, PAPER_VOCABULARY, find_size

# Without the input embedding, at a vocabulary of 100,352 (arXiv 2607.25271).
PAPER = {"14M": 13.90, "30M": 29.10, "60M": 57.42, "100M": 101.74, "190M": 190.35, "370M": 371.26, "600M": 547.96}


@pytest.mark.parametrize("name", LADDER)
def test_counts_are_those_of_the_model_that_transformers_makes(name):
    import torch
    from transformers import Olmo3ForCausalLM

    size = LADDER[name]
    with torch.device("meta"):
        model = Olmo3ForCausalLM(size.config(PAPER_VOCABULARY, 64))
    total = sum(p.numel() for p in model.parameters())
    embedding, head = model.get_input_embeddings().weight.numel(), model.lm_head.weight.numel()
    counts = size.count(PAPER_VOCABULARY)
    assert (counts.total, counts.N, counts.layers) == (total, total - embedding, total - embedding - head)
    if name in PAPER:
        assert pytest.approx(PAPER[name] * 1e6, rel=1e-3) == counts.N


def test_small_sizes_have_their_nominal_n_with_bytes():
    for name in (".044M", ".14M", ".44M", "1.4M", "4.4M"):
        assert pytest.approx(LADDER[name].nominal, rel=0.02) == LADDER[name].count(257).N


def test_a_size_is_found_by_a_number_near_its_nominal_n():
    assert find_size(547.96e6).name == "600M"
    assert find_size(44352).name == ".044M"


def test_a_number_far_from_every_size_is_refused_with_the_ladder():
    with pytest.raises(UserError, match=r"no model of the ladder.*There are .044M, .*600M"):
        find_size(45e6)
