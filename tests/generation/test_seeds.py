"""Draws depend on what is drawn for and on nothing else."""

from derivedata.generation.seeds import generator, request_seed, unit_interval


def test_a_seed_never_changes():
    # Written down once: a change here would make every finished corpus impossible to extend.
    assert request_seed(0, "0" * 32, "faq", 0, 0) == 6712914440796100697


def test_each_part_of_the_key_counts():
    keys = [
        request_seed(0, "a", "faq", 0, 0),
        request_seed(1, "a", "faq", 0, 0),
        request_seed(0, "b", "faq", 0, 0),
        request_seed(0, "a", "math", 0, 0),
        request_seed(0, "a", "faq", 1, 0),
        request_seed(0, "a", "faq", 0, 1),
        request_seed(0, "a", "faq", 0, 0, attempt=1),
    ]
    assert len(set(keys)) == len(keys)


def test_parts_do_not_run_into_each_other():
    assert request_seed(0, "ab", "c", 0, 0) != request_seed(0, "a", "bc", 0, 0)
    assert unit_interval(0, "mix", "1") != unit_interval(0, "mix", 1)


def test_seeds_are_what_vllm_takes():
    seeds = [request_seed(0, str(number), "faq", 0, 0) for number in range(1000)]
    assert all(0 <= seed < 2**63 for seed in seeds)
    assert max(seeds) > 2**62  # and they use the range


def test_unit_interval_is_uniform_enough():
    draws = [unit_interval(7, "mix", number) for number in range(4000)]
    assert all(0 <= draw < 1 for draw in draws)
    assert abs(sum(draws) / len(draws) - 0.5) < 0.02


def test_generators_of_different_purposes_differ():
    assert generator(0, "order", 1).random() != generator(0, "window", 1).random()
    assert generator(0, "order", 1).random() == generator(0, "order", 1).random()
