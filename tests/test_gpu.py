"""The GPU's programs equal the specification: on a GPU where there is one, else in Triton's interpreter, on numpy.

The interpreter runs the programs of a kernel one after the other, so it shows what each computes, and not whether they
race: of that, `tiles.py` says why they do not, and `benchmarks/select_gpu.py` compares on the real thing.
"""

from __future__ import annotations

import os
import subprocess
import sys
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import torch
from test_kernels import budgets, instances

import joulegrad as jg
from joulegrad.kernels import NotFinite, Scores, reference

pytest.importorskip("triton")
from joulegrad.kernels import frugal, gpu, priced

pytestmark = pytest.mark.filterwarnings("ignore:overflow encountered in multiply")  # numpy says it; a GPU does not
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


@pytest.fixture(autouse=True)
def _small(monkeypatch):
    """Less of all that is slow here, so that a small update has several programs, tiles and narrowings."""
    for name, value in {
        "LIST_PROGRAMS": 2, "PROGRAMS": 3, "TILE": 256, "LIST": 128, "BITS": 6, "CROWD": 16, "SAMPLE": 256
    }.items():  # fmt: skip
        monkeypatch.setattr(gpu, name, value)


@pytest.fixture(params=["all", "few"])
def _sample(request, monkeypatch):
    """A sample of everything; one so small, with so little room, that it misleads and lists are too long."""
    monkeypatch.setattr(gpu, "SAMPLE", 1024 if request.param == "all" else 32)
    if request.param == "few":
        for name, value in {"ERRORS": 0.5, "SPARE": 0, "ROOM": 4, "SKEW": 1, "LIST_BLOCK": 64, "BLOCK": 128}.items():
            monkeypatch.setattr(gpu, name, value)


def there(scores: Scores) -> Scores:
    return scores.to(DEVICE)


@pytest.mark.usefixtures("_sample")
def test_the_largest_are_the_references():
    for name, scores, k in instances(11, 18, 100):
        expected = reference.largest(scores, k)
        assert torch.equal(gpu.largest(there(scores), k).cpu(), expected), name


@pytest.mark.parametrize(("spare", "crowd"), [(8, 1024), (0, 4)])
def test_in_one_launch_there_is_one_program_where_none_can_meet(spare, crowd, monkeypatch):
    for name, value in {"FUSED": True, "SPARE": spare, "ERRORS": spare / 2, "CROWD": crowd}.items():
        monkeypatch.setattr(gpu, name, value)
    for name, scores, k in instances(13, 12, 300):
        assert torch.equal(gpu.largest(there(scores), k).cpu(), reference.largest(scores, k)), name


@pytest.mark.usefixtures("_sample")
def test_all_that_reaches_a_threshold_is_the_references():
    for name, scores, k in instances(12, 4, 60):
        values = reference.values(scores)
        for threshold in (float(values[len(values) // 2]), 0.0, 1e300):
            for most in (None, k):
                expected = reference.at_least(scores, threshold, most)
                assert torch.equal(gpu.at_least(there(scores), threshold, most).cpu(), expected), (name, threshold)


@pytest.mark.usefixtures("_sample")
@pytest.mark.parametrize("_sample", ["few"], indirect=True)
def test_every_count_of_a_few_entries_that_are_often_equal():
    update = torch.tensor([0, 1, -1, 2, 0, 1, 2, -2, 0.5, 1, 1, 0, 0, 3, -1, 2, 1, 0.25, 2, 1])
    layout = jg.Layout.from_shapes({"a": (3,), "b": (9,), "c": (8,)})
    for model in (jg.Table({"a": 1.0, "b": 2.0, "c": 1.0}), jg.PerEntry(torch.arange(20) % 2 + 1.0)):
        scores = Scores(update, 1, jg.Prices.of(model, layout))
        for k in range(0, 22, 3):
            assert torch.equal(gpu.largest(there(scores), k).cpu(), reference.largest(scores, k)), (model, k)


def test_a_misled_search_moves_its_marks_and_a_crowded_one_narrows_again(monkeypatch):
    """The bin is crowded where entries are equal; beyond the marks it lies where the sample says nothing of it."""
    for name, value in {"SAMPLE": 64, "ERRORS": 0.0, "SPARE": 0}.items():
        monkeypatch.setattr(gpu, name, value)
    turns, launch = [], gpu.launch
    monkeypatch.setattr(
        gpu, "launch", lambda program, *given, **how: (turns.append(given[-1]), launch(program, *given, **how))
    )
    update = torch.where(torch.arange(3000) % 7 < 3, 1.0, torch.arange(3000) / 3000)
    scores = Scores(update)
    for k in (1, 40, 900, 1200, 2999):
        assert torch.equal(gpu.largest(there(scores), k).cpu(), reference.largest(scores, k))
    assert max(turns) > 3


@pytest.mark.usefixtures("_sample")
@pytest.mark.parametrize("_sample", ["few"], indirect=True)
def test_several_updates_at_once():
    rng = np.random.default_rng(1)
    layout = jg.Layout.from_shapes({"a": (97,), "b": (0,), "c": (204,)})
    updates = torch.tensor(rng.standard_t(2, (3, 301)), dtype=torch.float32)
    updates[1] = 0.5
    for power, model in ((1, None), (2, jg.Table({"a": 1.0, "[bc]": 7.0})), (1, jg.PerEntry(torch.rand(301) + 1))):
        prices = None if model is None else jg.Prices.of(model, layout)
        for k in (0, 60, 301):
            expected = torch.stack([reference.largest(Scores(one, power, prices), k) for one in updates])
            assert torch.equal(gpu.largest(there(Scores(updates, power, prices)), k).cpu(), expected)
    updates[2, 300] = np.nan
    with pytest.raises(NotFinite):
        gpu.largest(there(Scores(updates)), 5)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_ranked_as_it_is(dtype, monkeypatch):
    for name, scores, k in instances(4, 5, 200):
        half = scores._replace(update=scores.update.clamp(-6e4, 6e4).to(dtype))
        assert torch.equal(gpu.largest(there(half), k).cpu(), reference.largest(half, k)), name


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_nothing_hides_a_nan(bad, monkeypatch):
    for place, k, power in ((0, 1, 1), (299, 299, 2), (150, 20, 1), (7, 0, 1), (8, 300, 1)):
        update = torch.zeros(300)
        update[place] = bad
        layout = jg.Layout.from_shapes({"w": (300,)})
        prices = jg.Prices.of(jg.PerEntry(torch.full((300,), 1e30)), layout) if k == 20 else None
        with pytest.raises(NotFinite):
            gpu.largest(there(Scores(update, power, prices)), k)
        with pytest.raises(NotFinite):
            gpu.at_least(there(Scores(update, power, prices)), 1e30)


def test_views_are_ranked_as_they_are(monkeypatch):
    """Memory that is not aligned, not contiguous, of updates and of costs."""
    update, costs = torch.randn(703, 2), torch.rand(703, dtype=torch.float64) + 0.5
    layout = jg.Layout.from_shapes({"w": (300,)})
    for view in (update[:, 1][1:301], update.flatten()[3:303], update.T[0][401:701]):
        for cost in (costs[1:301], costs[5:605:2]):
            scores = Scores(view, 1, jg.Prices(layout, cost, piecewise=False))
            assert torch.equal(gpu.largest(there(scores), 30).cpu(), reference.largest(scores, 30))


def test_more_entries_than_an_index_has_bits_for_are_the_references(monkeypatch):
    monkeypatch.setattr(gpu, "MOST", 10)
    monkeypatch.setattr(gpu, "aligned", lambda scores: pytest.fail("not the reference"))
    update = torch.randn(12)
    assert torch.equal(gpu.largest(Scores(update), 3), reference.largest(Scores(update), 3))
    assert torch.equal(gpu.at_least(Scores(update), 0.1), reference.at_least(Scores(update), 0.1))


def same(scores, k, joules):
    """Whether there was an answer; it is the reference's, to the last bit of the certificate."""
    found, expected = priced.budgeted(there(scores), k, joules), reference.budgeted(scores, k, joules)
    if found is None:
        return False
    assert torch.equal(found.indices.cpu(), expected.indices), (k, joules)
    assert found[1:] == expected[1:], (k, joules)
    return True


@pytest.mark.parametrize(("sample", "few", "reach"), [(1 << 16, 1 << 13, 1024), (128, 16, 6)])
def test_both_budgets_are_the_references_to_the_last_bit_of_the_certificate(sample, few, reach, monkeypatch):
    """With a sample of everything; and with a small one, few bins, and room for few entries."""
    monkeypatch.setattr(priced, "SAMPLE", sample)
    monkeypatch.setattr(priced, "TABLE", 1024)
    monkeypatch.setattr(priced, "FEW", few)
    monkeypatch.setattr(reference, "REACH", reach)
    rng, answered = np.random.default_rng(0), 0
    for _, scores, k in instances(sample, 16, 200):
        if scores.prices is not None and scores.prices.piecewise:
            answered += sum(same(scores, k, joules) for joules in list(budgets(scores, k, rng))[1::2])
    assert answered >= 3


def heavy(d, layers, power, seed=3):
    rng = np.random.default_rng(seed)
    layout = jg.Layout.from_shapes({f"l{i}": (d // layers,) for i in range(layers)})
    update = torch.tensor(rng.standard_t(3, layout.size) * rng.lognormal(0, 1), dtype=torch.float32)
    costs = jg.Table({s.name: (5.0, 5.0, 0.3)[i % 3] for i, s in enumerate(layout.segments)})
    return Scores(update, power, jg.Prices.of(costs, layout))


@pytest.mark.parametrize("power", [1, 2])
def test_a_heavy_tailed_update_is_answered(power, monkeypatch):
    """Whether the joules bind, the count, both, or neither."""
    monkeypatch.setattr(priced, "SAMPLE", 2048)
    monkeypatch.setattr(priced, "TABLE", 8192)
    scores = heavy(9000, 3, power)
    for share in (0.5, 0.95, 2.0):
        energy = scores.prices.total(reference.largest(scores.worth, 900))
        assert same(scores, 900, share * energy), share


@pytest.mark.parametrize("reach", [8, 40, 9000])
def test_what_is_left_over_goes_to_the_best_that_it_still_pays(reach, monkeypatch):
    """From the list, while it is long enough; else from the update."""
    monkeypatch.setattr(priced, "SAMPLE", 8192)
    monkeypatch.setattr(priced, "TABLE", 8192)
    monkeypatch.setattr(reference, "REACH", reach)
    ways = []
    for way in ("next_best", "searched"):
        usual = getattr(priced._Choice, way)
        note = lambda self, *given, way=way, usual=usual: (ways.append(way), usual(self, *given))[1]  # noqa: E731
        monkeypatch.setattr(priced._Choice, way, note)
    scores = heavy(9000, 3, 1)
    for joules in (300.25, 301.3, 302.9):
        assert same(scores, 9000, joules)
    assert "next_best" in ways
    assert ("searched" in ways) == (reach == 9000)


@pytest.mark.parametrize("temper", ["heavy", "small integers"])
@pytest.mark.parametrize("power", [1, 2])
def test_where_only_the_joules_bind_there_is_no_search(power, temper, monkeypatch):
    """In one launch, of one program here; many entries have the very price at which the joules end, or one."""
    for name, value in {"FUSED": True, "TILE": 1024, "LIST": 512, "CROWD": 512, "SAMPLE": 256, "BITS": 9}.items():
        monkeypatch.setattr(gpu, name, value)
    rng, answered = np.random.default_rng(power), 0
    layout = jg.Layout.from_shapes({"a": (500,), "b": (400,), "c": (41,)})
    for dear, k, share in ((1.0, 300, 0.7), (1.5, 900, 0.1), (3.0, 300, 0.99), (1.0, 300, 0.4), (1.0, 100, 0.5)):
        update = torch.tensor(rng.standard_t(3, layout.size), dtype=torch.float32)
        update = (50 * update).round() / 64 if temper == "small integers" else update
        scores = Scores(update, power, jg.Prices.of(jg.Table({"a": 1.0, "b": dear, "c": 5.0}), layout))
        joules = share * scores.prices.total(reference.largest(scores.worth, k))
        expected = reference.budgeted(scores, k, joules)
        found = frugal.budgeted(there(scores), gpu.Plan.of(there(scores)), k, joules)
        if found is not None:
            assert torch.equal(found.indices.cpu(), expected.indices), (dear, k, share)
            assert found[1:] == expected[1:], (dear, k, share)
            answered += 1
    assert answered


def test_what_the_joules_leave_of_equal_entries_is_counted_as_the_reference_counts_it():
    for cost, joules, tied in ((0.1, 1.0, 12), (0.1, 0.3, 5), (1 / 3, 1.0, 3), (1.0, 2.5, 9)):
        layout = jg.Layout.from_shapes({"w": (tied,)})
        prices = jg.Prices.of(jg.Uniform(cost), layout)
        sides = reference.Sides(torch.arange(0), Fraction(0), Fraction(0), torch.arange(tied), torch.arange(0))
        assert frugal._that_fit(tied, cost, Fraction(0), joules) == len(reference._mixture(sides, tied, joules, prices))


def test_neither_budget_hides_a_nan(monkeypatch):
    monkeypatch.setattr(priced, "TABLE", 1024)
    scores = heavy(300, 2, 1)
    scores.update[299] = np.inf
    with pytest.raises(NotFinite):
        priced.budgeted(there(scores), 30, 30.0)


def test_what_two_floats_cannot_tell_is_said():
    """A sum is compared with the joules as if it were exact: to the last bit, or not at all."""
    crossing = pytest.importorskip("joulegrad.kernels.crossing")
    rng = np.random.default_rng(0)
    for _ in range(300):
        costs, counts = rng.lognormal(0, 3, 5), rng.integers(0, 1 << 30, 5)
        energy = sum(int(n) * Fraction(float(c)) for n, c in zip(counts, costs, strict=True))
        for joules in (float(energy), np.nextafter(float(energy), 0), np.nextafter(float(energy), np.inf)):
            assert crossing.over(counts, costs, joules) in (int(float(energy) > joules), -1)
    assert crossing.over(np.array([1, 1]), np.array([1.0, 2.0**-53]), 1.0) == -1


def test_the_doctor_says_which_kernels_a_gpu_would_have(monkeypatch):
    from joulegrad import kernels
    from joulegrad.lab import doctor

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "A GPU")
    monkeypatch.setattr(kernels, "chosen", lambda device: gpu)
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    said = {fact.name: fact.found for fact in doctor._gpu()}
    assert said["selection on a GPU"].startswith("kernels.gpu on A GPU, compiled by Triton 3.")
    assert said["both budgets on a GPU"].startswith("kernels.priced")
    monkeypatch.setattr(kernels, "chosen", lambda device: reference)
    assert "for want of Triton" in next(doctor._gpu()).found
    monkeypatch.setattr(torch.version, "cuda", None)
    assert "for NVIDIA's" in next(doctor._gpu()).found
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert "without CUDA" in next(doctor._gpu()).found


def test_who_serves_both_budgets(monkeypatch):
    """The kernels where they have an answer, else the search on the CPU, which asks for the entries in doubt."""
    from joulegrad import kernels

    scores, asked = heavy(600, 2, 1), []
    expected = reference.budgeted(scores, 60, 100.0)
    monkeypatch.setattr(kernels, "_of", lambda update: gpu)
    monkeypatch.setattr(priced, "budgeted", lambda *given: asked.append(given))
    found = kernels.budgeted(scores, 60, 100.0)
    assert torch.equal(found.indices, expected.indices)
    assert found[1:] == expected[1:]
    assert asked == [(scores, 60, 100.0)]
    monkeypatch.setattr(priced, "budgeted", lambda *given: expected)
    assert kernels.budgeted(scores, 1, 1.0) is expected


def test_a_gpu_would_run_them(tmp_path):
    """They compile, down to a GPU's machine code; the interpreter takes more than the compiler does."""
    environment = {**os.environ, "TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(tmp_path)}
    command = [sys.executable, str(Path(__file__).parent / "compile_for_gpu.py")]
    found = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert found.returncode == 0, found.stderr
    assert found.stdout.count("bytes") == 14
