"""The compiled kernels equal the specification, on every input, with any number of threads."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from fractions import Fraction

import numpy as np
import pytest
import torch

import joulegrad as jg
from joulegrad import exact, kernels
from joulegrad.kernels import NotFinite, Scores, afar, cpu, dual, passes, reference, threads

TEMPERS = {
    "heavy": lambda rng, d: rng.standard_t(2, d),
    "small integers": lambda rng, d: rng.integers(-3, 4, d),
    "all equal": lambda rng, d: np.full(d, rng.lognormal()),
    "nine tenths zero": lambda rng, d: rng.standard_normal(d) * (rng.random(d) < 0.1),
    "sorted": lambda rng, d: np.sort(rng.standard_normal(d)),
    "denormal": lambda rng, d: rng.standard_normal(d) * 1e-42,
    "huge": lambda rng, d: rng.standard_normal(d) * 5e37,
    "two values": lambda rng, d: np.where(rng.random(d) < 0.5, 1.0, -2.0),
    "zero": lambda rng, d: np.zeros(d),
}
COSTS = {
    "none": lambda rng, layout: None,
    "paper": lambda rng, layout: jg.Table({s.name: float(rng.choice([1, 5])) for s in layout.segments}),
    "layers": lambda rng, layout: jg.Table({s.name: float(rng.lognormal(0, 4)) for s in layout.segments}),
    "entries": lambda rng, layout: jg.PerEntry(torch.tensor(rng.lognormal(0, 1, layout.size))),
    "equal entries": lambda rng, layout: jg.PerEntry(torch.full((layout.size,), 0.3)),
    "wild entries": lambda rng, layout: jg.PerEntry(torch.tensor(rng.lognormal(0, 40, layout.size))),
}


def instances(seed: int, n: int, most: int) -> Iterator[tuple[str, Scores, int]]:
    """Layers of many sizes, empty ones too; every temper with every cost; counts of every size."""
    rng = np.random.default_rng(seed)
    for i in range(n):
        sizes = [*rng.integers(0, most, rng.integers(1, 8)).tolist(), 1]
        layout = jg.Layout.from_shapes({f"l{j}": (size,) for j, size in enumerate(sizes)})
        d = layout.size
        temper, cost = list(TEMPERS)[i % len(TEMPERS)], list(COSTS)[i % len(COSTS) if i % 2 else i % 5]
        drawn = np.clip(TEMPERS[temper](rng, d), -3e38, 3e38)
        model = COSTS[cost](rng, layout)
        prices = None if model is None else jg.Prices.of(model, layout)
        k = int(rng.choice([0, 1, d // 100, d // 10, d // 5, d // 2, d - 1, d, rng.integers(0, d + 1)]))
        name = f"{i}: {temper}, {cost}, {d} entries, k = {k}"
        yield name, Scores(torch.tensor(drawn, dtype=torch.float32), 1 + i % 3 // 2, prices), k


@pytest.fixture(params=[1, 3], ids=["one thread", "three threads"])
def _threads(request, monkeypatch):
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    monkeypatch.setattr(threads, "WORTH_A_THREAD", 16)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("_threads")
@pytest.mark.parametrize(("sample", "most", "n"), [(cpu.SAMPLE, 300, 300), (16, 300, 600), (64, 20_000, 40)])
def test_the_largest_are_the_references(sample, most, n, monkeypatch):
    """With a sample of everything, and with samples so small that they mislead all the time."""
    monkeypatch.setattr(cpu, "SAMPLE", sample)
    for name, scores, k in instances(most + sample, n, most):
        assert torch.equal(cpu.largest(scores, k), reference.largest(scores, k)), name
        values = reference.values(scores)
        for threshold in (float(values[len(values) // 2]), float(values.max()), 0.0, 1e300):
            assert torch.equal(cpu.at_least(scores, threshold), reference.at_least(scores, threshold)), name
            assert torch.equal(cpu.at_least(scores, threshold, k), reference.at_least(scores, threshold, k)), name


def test_the_largest_of_enough_entries_for_two_threads():
    for name, scores, k in instances(5, 12, 150_000):
        assert torch.equal(cpu.largest(scores, k), reference.largest(scores, k)), name


def test_a_sample_that_misleads_entirely(monkeypatch):
    """Where it lies about everything, the certain bracket finds the answer."""

    def liar(g, ends, costs, power, worths, paid):
        worths[:], paid[:] = lie, 1.0

    scores = Scores(torch.tensor(np.random.default_rng(0).standard_normal(50_000), dtype=torch.float32))
    monkeypatch.setattr(passes, "sample", liar)
    monkeypatch.setattr(cpu, "SAMPLE", 1000)
    for lie in (0.0, 1e-9, 0.5, 3.0, 1e30):
        for k in (1, 500, 25_000, 49_999):
            assert torch.equal(cpu.largest(scores, k), reference.largest(scores, k)), (lie, k)


def budgets(scores: Scores, k: int, rng: np.random.Generator) -> Iterator[float]:
    """None of Top-K's energy, some, all, more; and whole numbers, which sums of whole costs meet exactly."""
    energy = scores.prices.total(reference.largest(scores.worth, k))
    for share in (0.0, rng.random(), 1.0, 1.5):
        yield energy * share
    yield float(np.floor(energy * rng.random()))


@pytest.mark.usefixtures("_threads")
@pytest.mark.parametrize(("sample", "most", "n"), [(1 << 17, 200, 120), (128, 200, 200), (256, 3000, 25)])
def test_the_budgeted_are_the_references_to_the_last_bit_of_the_certificate(sample, most, n, monkeypatch):
    monkeypatch.setattr(dual, "SAMPLE", sample)
    monkeypatch.setattr(dual, "WANTED", sample)
    monkeypatch.setattr(cpu, "SAMPLE", sample)
    rng = np.random.default_rng(0)
    for name, scores, k in instances(most + sample, n, most):
        for joules in [] if scores.prices is None else budgets(scores, k, rng):
            found, expected = dual.budgeted(scores, k, joules), reference.budgeted(scores, k, joules)
            assert torch.equal(found.indices, expected.indices), (name, joules)
            assert found[1:] == expected[1:], (name, joules)


@pytest.mark.parametrize(("sample", "most", "n"), [(1 << 17, 200, 60), (128, 200, 120), (256, 3000, 25)])
def test_only_what_is_in_doubt_is_asked_for_of_an_update_elsewhere(sample, most, n, monkeypatch):
    """What serves a GPU without kernels of our own is plain torch, so it can be tried here."""
    monkeypatch.setattr(dual, "SAMPLE", sample)
    monkeypatch.setattr(dual, "WANTED", sample)
    rng = np.random.default_rng(0)
    for name, scores, k in instances(most + sample, n, most):
        for joules in [] if scores.prices is None else budgets(scores, k, rng):
            found = dual.solved(afar.There(scores), scores, k, joules, reference.largest, reference.merge)
            expected = reference.budgeted(scores, k, joules)
            assert torch.equal(found.indices, expected.indices), (name, joules)
            assert found[1:] == expected[1:], (name, joules)
    scores.update[3] = np.nan
    with pytest.raises(NotFinite):
        dual.solved(afar.There(scores), scores, 5, 1.0, reference.largest, reference.merge)


def test_a_misled_search_begins_again_with_everything(monkeypatch):
    rng = np.random.default_rng(1)
    layout = jg.Layout.from_shapes({"a": (6000,), "b": (4000,)})
    prices = jg.Prices.of(jg.Table({"a": 1.0, "b": 3.0}), layout)
    scores = Scores(torch.tensor(rng.standard_normal(10_000), dtype=torch.float32), 1, prices)
    expected = reference.budgeted(scores, 1000, 900.0)
    price = expected.energy_price
    everything = dual.Bracket(0.0, sys.float_info.max, 0.0, 10_000)
    for low, high, entry in (
        (1.2 * price, 2 * price, 0.0),  # too high
        (0.2 * price, 0.8 * price, 0.0),  # too low
        (0.9 * price, 1.1 * price, 5.0),  # right, but entries are missing
    ):
        wrong = dual.Bracket(low, high, entry, 10)
        assert not dual._Search(dual.Here(cpu.Ranked.of(scores)), wrong, 1000, 900.0).certain
        monkeypatch.setattr(dual, "_brackets", lambda *_, wrong=wrong: iter([wrong, everything]))
        assert torch.equal(dual.budgeted(scores, 1000, 900.0).indices, expected.indices)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_nothing_hides_a_nan(bad):
    for i, (name, scores, k) in enumerate(instances(9, 60, 400)):
        update = scores.update.clone()
        update[(i * 37) % len(update)] = bad
        spoilt = scores._replace(update=update)
        with pytest.raises(NotFinite):
            kernels.largest(spoilt, k)
        with pytest.raises(NotFinite):
            kernels.at_least(spoilt, 1e30)
        if scores.prices is not None:
            with pytest.raises(NotFinite):
                kernels.budgeted(spoilt, k, 1.0), name
        assert not kernels.all_finite(update)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_ranked_as_it_is(dtype):
    for name, scores, k in instances(4, 60, 300):
        half = scores._replace(update=scores.update.clamp(-6e4, 6e4).to(dtype))
        assert torch.equal(kernels.largest(half, k), reference.largest(half, k)), name


def test_where_there_are_many_entries_threads_share_them():
    assert len(threads.chunks(10**9)) == torch.get_num_threads()
    assert threads.chunks(0) == [(0, 0)]
    assert threads.chunks(10) == [(0, 10)]


def test_sums_are_exact_whatever_the_numbers():
    rng = np.random.default_rng(2)
    for scale in (1.0, 1e-320, 1e298):
        x = np.concatenate([rng.standard_normal(5000) * scale * rng.lognormal(0, 3, 5000), [-0.0, 5e-324, -5e-324]])
        assert exact.total(torch.from_numpy(x)) == sum(map(Fraction, x.tolist()))


def test_without_a_place_for_the_cache_it_compiles_for_itself(tmp_path):
    """As root no folder is unwritable, so the cache's places are made to refuse."""
    code = """
import numba.core.caching, torch

def refuse(self):
    raise OSError("read-only file system")

for locator in numba.core.caching.CacheImpl._locator_classes:
    locator.ensure_cache_path = refuse
import joulegrad
op = joulegrad.TopK(k=2)
print(op(torch.arange(5.0), op.init(joulegrad.Layout.from_shapes({"w": (5,)})))[0].indices.tolist())
"""
    for folder in (str(tmp_path / "missing"), ""):
        environment = {**os.environ, "NUMBA_CACHE_DIR": folder}
        found = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=False
        )
        assert found.returncode == 0, found.stderr
        assert found.stdout.strip() == "[3, 4]"


@pytest.mark.parametrize("bits", [1, 2, 4, 8])
@pytest.mark.parametrize("drawn", [False, True])
def test_codes_are_the_references(bits, drawn):
    rng = np.random.default_rng(bits)
    for scale in (1.0, 1e-44, 1e38):
        counts = torch.tensor([0, 1, 700, 0, 299])
        values = torch.tensor(np.clip(rng.standard_t(2, 1000) * scale, -3e38, 3e38), dtype=torch.float32)
        dither = torch.tensor(rng.random(1000)) if drawn else None
        most, mean = 2**bits - 1, bits == 1 and not drawn
        scales = reference.scales(values, counts, most, mean=mean)
        levels = reference.levels(values, counts, most, scales, dither)
        assert torch.equal(cpu.scales(values, counts, most, mean=mean), scales)
        assert torch.equal(cpu.levels(values, counts, most, scales, dither), levels)
        codes = jg.Codes(bits, levels, scales, counts)
        assert torch.equal(cpu.values_of(codes), codes.values())
