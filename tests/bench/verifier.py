"""How fast answers are verified, and what hostile ones cost.

    python -m tests.bench.verifier

1. Where comparison decides: answers a second of one core, extraction and comparison together, each answer a new text.
   Mixture of GSM8K's labelled solutions (shortened to their ends), numbers, fractions, surds, money and units.
2. Where it can't: pairs that only math-verify can judge, against math-verify called in one process by a plain loop;
   per worker by processor time, and in parallel by the clock.
3. The pool by itself: answers that wait 20 ms without using the processor, one in a hundred of which waits for ever.
   On a busy machine this is the ratio to look at: part 4 also measures who else computes there.
4. One answer in a hundred hostile: wall time against (time without them + hostile answers x deadline / workers), and
   every other verdict the same.
"""

from __future__ import annotations

import argparse
import json
import random
import time

from derivedata.problems import Verifier, WorkerLimits
from derivedata.problems.compare import _read, compare
from derivedata.problems.extract import extract
from tests.bench.reference import reference_folder


def decided_pairs(count: int, seed: int = 0) -> list[tuple[str, str]]:
    """(gold, response) whose comparison is decided by numbers or strings."""
    rng = random.Random(seed)

    def number() -> str:
        return str(rng.randint(0, 10**6))

    makers = [
        lambda: (number(), f"Therefore there are \\boxed{{{number()}}} of them."),
        lambda: (g := number(), f"So the total is \\boxed{{{int(g):,}}}."),
        lambda: (number(), f"and so on.\n#### {rng.randint(0, 10**6):,}"),
        lambda: (number(), f"He pays \\boxed{{\\${rng.randint(1, 9999)}.{rng.randint(0, 99):02d}}}."),
        lambda: (number(), f"That makes \\boxed{{{number()} \\text{{ apples}}}}."),
        lambda: (number(), f"Hence \\boxed{{\\frac{{{rng.randint(1, 999)}}}{{{rng.randint(1, 999)}}}}}."),
        lambda: (number(), f"Hence \\boxed{{{rng.randint(2, 99)}\\sqrt{{{rng.randint(2, 999)}}}}}."),
        lambda: ("p - q", "\\boxed{p-q}"),
    ]
    weights = [6, 4, 6, 2, 2, 2, 1, 1]
    return [rng.choices(makers, weights)[0]() for _ in range(count)]


def hard_pairs(count: int, seed: int = 0) -> list[tuple[str, str]]:
    """(gold, answer) that only computer algebra can judge: MATH-500's golds that are no numbers, and polynomials."""
    rng = random.Random(seed)
    lines = (reference_folder() / "problems/math500.jsonl").read_text().splitlines()
    golds = [json.loads(line)["answer"] for line in lines]
    golds = [gold for gold in golds if compare(gold, gold + "+0").equal is None and "text" not in gold]
    pairs = []
    while len(pairs) < count:
        if rng.random() < 0.5:
            a, b, c = rng.randint(1, 99), rng.randint(1, 99), rng.randint(0, 1)
            pair = (f"(x+{a})(x+{b})", f"x^2+{a + b + c}x+{a * b}")
        else:
            gold = rng.choice(golds)
            pair = (gold, f"{gold}+{rng.randint(0, 99)}")
        if compare(*pair).equal is None:
            pairs.append(pair)
    return pairs


def hostile_answers(count: int) -> list[str]:
    """Answers that would take math-verify minutes, each another one."""
    kinds = ("9^{{9^{{9^{{{}}}}}}}", "10^{{10^{{{}}}}}", "(x+y+z+{})^{{4000}}", "\\binom{{10^9}}{{4\\cdot10^8+{}}}")
    return [kinds[i % len(kinds)].format(i + 10) for i in range(count)]


def bench_comparison(count: int) -> None:
    """Print answers a second of one core where comparison decides."""
    pairs = decided_pairs(count)
    for title, gold_first in (("new texts", True), ("the same again (cached)", False)):
        if gold_first:
            _read.cache_clear()
        began = time.process_time()
        undecided = 0
        for gold, response in pairs:
            undecided += compare(gold, extract(response).answer or "").equal is None
        seconds = time.process_time() - began
        print(
            f"comparison, {title}: {count / seconds:,.0f} answers/s a core, {undecided / count:.1%} left to math-verify"
        )


def plain_rate(pairs: list[tuple[str, str]]) -> tuple[float, list[bool]]:
    """math-verify in a plain loop: pairs a second of processor time, and its verdicts."""
    from derivedata.problems import symbolic

    symbolic.prepare()
    from math_verify import parse, verify

    verdicts = []
    began = time.process_time()
    for gold, answer in pairs:
        one, other = (parse(f"\\boxed{{{text}}}", parsing_timeout=None) for text in (gold, answer))
        verdicts.append(verify(one, other, allow_set_relation_comp=True, timeout_seconds=None))
    return len(pairs) / (time.process_time() - began), verdicts


def children_seconds(verifier: Verifier) -> float:
    """Processor time that the workers have used so far."""
    import psutil

    workers = psutil.Process(verifier.pool._forker.pid).children()
    return sum(sum(worker.cpu_times()[:2]) for worker in workers)


def bench_math_verify(count: int, workers: int) -> list[tuple[str, str]]:
    """Print the rate of the worker processes against a plain loop."""
    pairs = list(dict.fromkeys(hard_pairs(count)))
    rate, verdicts = plain_rate(pairs)
    print(f"math-verify in a plain loop: {rate:,.0f} pairs per CPU second ({len(pairs):,} pairs)")
    with Verifier(limits=WorkerLimits(workers=workers, deadline=30)) as verifier:
        verifier.pool.start()
        before, began = children_seconds(verifier), time.monotonic()
        ours = list(verifier.verify_many((gold, f"\\boxed{{{answer}}}") for gold, answer in pairs))
        wall, used = time.monotonic() - began, children_seconds(verifier) - before
    same = sum(one.correct == other for one, other in zip(ours, verdicts, strict=True))
    share = len(pairs) / used / rate
    print(f"{workers} workers: {len(pairs) / used:,.0f} pairs per CPU second, {share:.2f} of the plain loop")
    print(f"  {len(pairs) / wall:,.0f}/s by the clock, {used / wall:.2f} cores busy")
    print(f"  {same} of {len(pairs)} verdicts are those of the plain loop")
    return pairs


def measure_hostile(
    title: str, honest: list[tuple], hostile: list[tuple], limits: WorkerLimits, plugin: str | None = None
) -> None:
    """Print what hostile answers strewn among honest ones cost; all texts differ, since equal ones are checked once."""
    total = len(honest) + len(hostile)
    places = set(random.Random(1).sample(range(total), len(hostile)))
    bad, good = iter(hostile), iter(honest)
    mixed = [next(bad) if place in places else next(good) for place in range(total)]
    outcomes = []
    for batch in (honest, mixed):
        with Verifier(plugin=plugin, limits=limits) as verifier:
            verifier.pool.start()
            began = time.monotonic()
            verdicts = list(verifier.verify_many(batch))
            outcomes.append((time.monotonic() - began, verdicts))
    (without, plain), (wall, verdicts) = outcomes
    kept = [verdict for place, verdict in enumerate(verdicts) if place not in places]
    timeouts = sum(verdicts[place].verdict == "verifier_timeout" for place in places)
    changed = sum(a.verdict != b.verdict for a, b in zip(kept, plain, strict=True))
    deadlines = len(hostile) * limits.deadline / limits.count
    print(f"{title}: {len(hostile)} hostile of {total:,} answers, {limits.count} workers: {wall:.1f} s")
    print(f"  {without:.1f} s without them + {deadlines:.1f} s of deadlines; ratio {wall / (without + deadlines):.3f}")
    print(f"  {timeouts} timed out, {changed} other verdicts changed")


def bench_hostile(pairs: list[tuple[str, str]], repeats: int, limits: WorkerLimits) -> None:
    """Print what 1 % hostile answers cost the pool by itself, and with math-verify at work."""
    count = len(pairs) * repeats
    waiting = [("5", f"0.02 {i}") for i in range(count)]
    forever = [("5", f"1e6 {i}") for i in range(count // 100)]
    measure_hostile("waiting answers", waiting, forever, limits, plugin="tests.problems.plugins:wait")
    honest = [(gold, f"\\boxed{{{answer}+{i}a}}") for i in range(repeats) for gold, answer in pairs]
    hostile = [("5", f"\\boxed{{{answer}}}") for answer in hostile_answers(count // 100)]
    measure_hostile("math-verify", honest, hostile, limits)


def main() -> None:
    """Run the parts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--answers", type=int, default=100_000, help="answers of part 1")
    parser.add_argument("--pairs", type=int, default=1_000, help="pairs of part 2")
    parser.add_argument(
        "--repeats", type=int, default=3, help="parts 3 and 4 take as many answers as pairs, so many times"
    )
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--deadline", type=float, default=3.0)
    arguments = parser.parse_args()
    bench_comparison(arguments.answers)
    pairs = bench_math_verify(arguments.pairs, arguments.workers)
    limits = WorkerLimits(workers=arguments.workers, deadline=arguments.deadline)
    bench_hostile(pairs, arguments.repeats, limits)


if __name__ == "__main__":
    main()
