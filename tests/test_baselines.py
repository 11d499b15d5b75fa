"""Methods of others, as operators here: each beside what its paper says, written out in numpy."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

import joulegrad
from joulegrad import (
    Clipped,
    ErrorFeedback,
    LayerWise,
    Layout,
    MomentumCorrection,
    PerChunk,
    PerLayer,
    Quantized,
    RandomK,
    TopK,
    WarmUp,
)
from joulegrad.lab.experiment import Experiment
from joulegrad.sizes import payload_bytes, support_bits

ONE = Layout.from_shapes({"w": (200,)})
LAYERS = Layout.from_shapes({"loud": (300,), "even": (40, 10), "quiet": (100,), "bias": (7,)})


def updates(n, size, seed=0):
    rng = np.random.default_rng(seed)
    return [rng.standard_t(2, size).astype(np.float32) for _ in range(n)]


def sent_by(op, layout, rounds):
    state, found = op.init(layout), []
    for update in rounds:
        sent, state = op(torch.from_numpy(update), state)
        found.append(sent)
    return found


def largest(g, k):
    return np.sort(np.argsort(-np.abs(g), kind="stable")[:k])


# --- Sattler et al.: sparse ternary compression ---------------------------------------------------------------------


def test_stc_is_error_feedback_around_one_bit_of_topk():
    """T* = μ · sign of the k largest, μ their mean magnitude; A ← A + ΔW − T*."""
    op, rounds, left = ErrorFeedback(Quantized(TopK(density=0.05), bits=1)), updates(6, 200), np.zeros(200, np.float32)
    for sent, update in zip(sent_by(op, ONE, rounds), rounds, strict=True):
        left = left + update
        chosen = largest(left, 10)
        expected = np.zeros(200)
        expected[chosen] = np.sign(left[chosen]) * np.abs(left[chosen].astype(float)).mean()
        assert np.allclose(sent.to_dense().numpy(), expected, rtol=1e-6, atol=0)
        left = (left - sent.to_dense().numpy()).astype(np.float32)


# --- Lin et al.: deep gradient compression --------------------------------------------------------------------------


def test_dgc_is_momentum_correction_with_warm_up_of_what_was_clipped():
    """u ← m u + clip(g), v ← v + u; the k largest of v are sent, and cleared in both; density 25, 5 % at first."""
    op = Clipped(MomentumCorrection(WarmUp(TopK(density=0.01), start=0.25, steps=2), momentum=0.5), norm=40.0)
    rounds = updates(6, 200)
    u, v = np.zeros(200), np.zeros(200)
    lengths = [np.linalg.norm(g) for g in rounds]
    assert min(lengths) < 40 < max(lengths)
    for sent, g, k in zip(sent_by(op, ONE, rounds), rounds, [50, 10, 2, 2, 2, 2], strict=True):
        u = 0.5 * u + g * min(1.0, 40.0 / np.linalg.norm(g))
        v = v + u
        chosen = largest(v, k)
        assert sent.indices.tolist() == chosen.tolist()
        assert np.allclose(sent.values.numpy(), v[chosen], rtol=1e-5)
        u[chosen] = v[chosen] = 0


def test_an_update_that_is_short_enough_is_left_alone():
    g = torch.tensor([3.0, -4.0])
    layout = Layout.from_shapes({"w": (2,)})
    for norm, expected in ((5.0, [3.0, -4.0]), (2.5, [1.5, -2.0]), (1e-3, [0.0006, -0.0008])):
        op = Clipped(TopK(k=2), norm=norm)
        assert op(g, op.init(layout))[0].values.tolist() == pytest.approx(expected, rel=1e-6)
    zero, _ = op(torch.zeros(2), op.init(layout))
    assert zero.values.tolist() == [0.0, 0.0]
    huge, _ = op(torch.tensor([3e38, 3e38]), op.init(layout))
    assert huge.values.tolist() == pytest.approx([1e-3 / 2**0.5] * 2)


def test_clipping_does_not_depend_on_the_number_of_threads():
    g, layout = torch.from_numpy(updates(1, 300_000)[0]), Layout.from_shapes({"w": (300_000,)})
    op, found, threads = Clipped(TopK(density=0.1), norm=0.01), [], torch.get_num_threads()
    try:
        for n in (1, 2, 3):
            torch.set_num_threads(n)
            found.append(op(g, op.init(layout))[0])
    finally:
        torch.set_num_threads(threads)
    assert found[0] == found[1] == found[2]


# --- Alistarh et al.: QSGD ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bits", [4, 8])
def test_qsgd_is_every_entry_rounded_at_random_and_right_on_average(bits):
    g = torch.from_numpy(updates(1, 200)[0])
    total, draws = torch.zeros(200, dtype=torch.float64), 400
    for seed in range(draws):
        op = Quantized(TopK(density=1.0), bits=bits, rounding="stochastic", seed=seed)
        sent, _ = op(g, op.init(ONE))
        total += sent.to_dense().double()
    step = 2 * float(g.abs().max()) / (2**bits - 1)
    assert float((sent.to_dense() - g).abs().max()) <= step * (1 + 1e-6)  # to one of the two levels around
    assert float((total / draws - g).abs().max()) < 5 * step / 2 / draws**0.5
    assert len(joulegrad.encode(sent, ONE)) <= 200 * bits // 8 + 40


# --- Sarfi et al.: SparseLoCo ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("entries", [1, 7, 50, 4096])
@pytest.mark.parametrize("size", [{"k": 3}, {"density": 0.1}, {"k": 0}, {"density": 1.0}], ids=str)
def test_chunks_are_topk_in_each_by_itself(size, entries):
    """With many ties, so that their order shows."""
    rng = np.random.default_rng(1)
    for g in (rng.integers(-2, 3, LAYERS.size).astype(np.float32), updates(1, LAYERS.size)[0]):
        expected = []
        for s in LAYERS.segments:
            for start in range(s.start, s.stop, entries):
                chunk = torch.from_numpy(g[start : min(start + entries, s.stop)].copy())
                layout = Layout.from_shapes({"chunk": (len(chunk),)})
                expected += [start + i for i in TopK(**size)(chunk, TopK(**size).init(layout))[0].indices.tolist()]
        op = PerChunk(**size, entries=entries)
        for dtype in (torch.float32, torch.bfloat16):
            given = torch.from_numpy(g).to(dtype)
            if dtype == torch.float32 or float(given.float().sub(torch.from_numpy(g)).abs().max()) == 0:
                assert op(given, op.init(LAYERS))[0].indices.tolist() == expected


def test_sparseloco_travels():
    """2-bit values of chunks, what is left fading: its payload is what arrives."""
    op = ErrorFeedback(Quantized(PerChunk(density=0.1, entries=64), bits=2), decay=0.95)
    for sent in sent_by(op, LAYERS, updates(4, LAYERS.size)):
        assert joulegrad.decode(joulegrad.encode(sent, LAYERS), LAYERS) == sent
        assert sent.codes.bits == 2


# --- Markov et al.: L-GreCo -----------------------------------------------------------------------------------------


def counts(sent, layout):
    return torch.searchsorted(sent.indices, layout.ends).diff(prepend=torch.zeros(1, dtype=torch.int64)).tolist()


def error(g, sent):
    return float((torch.from_numpy(g).double() - sent.to_dense().double()).square().sum())


@pytest.mark.parametrize("value_bits", [1, 32])
@pytest.mark.parametrize("density", [0.02, 0.1, 0.5])
def test_layers_share_the_bytes_so_that_they_err_least(density, value_bits):
    """Against all divisions on the same ladder; costs are rounded up to a 10,000th of the budget: all it loses."""
    from joulegrad.allotment import UNITS, _ladder

    layout = Layout.from_shapes({"b": (60,), "a": (200,), "c": (90,)})
    op, uniform = LayerWise(density=density, value_bits=value_bits), PerLayer(TopK(density=density))

    def bits(ks):
        scale = 32 if value_bits == 1 else 0
        pairs = zip(ks, layout.segments, strict=True)
        return sum(support_bits(s.size, k) + value_bits * k + (scale if k else 0) for k, s in pairs)

    for seed in range(3):
        g = updates(1, layout.size, seed)[0] * np.repeat([3.0, 1.0, 0.1], [60, 200, 90]).astype(np.float32)
        [sent], [plain] = sent_by(op, layout, [g]), sent_by(uniform, layout, [g])
        own = counts(plain, layout)
        budget = bits(own)
        assert bits(counts(sent, layout)) <= budget
        assert error(g, sent) < error(g, plain)
        ladders = [_ladder(k, s.size) for k, s in zip(own, layout.segments, strict=True)]
        parts = [np.sort(g[s.start : s.stop].astype(float) ** 2)[::-1] for s in layout.segments]
        left = [{k: part[k:].sum() for k in ladder} for part, ladder in zip(parts, ladders, strict=True)]
        within = (ks for ks in itertools.product(*ladders) if bits(ks) <= budget * (1 - 3 / UNITS))
        best = min(sum(e[k] for e, k in zip(left, ks, strict=True)) for ks in within)
        assert error(g, sent) <= best * (1 + 1e-9)


def test_one_layer_has_all_the_bytes_and_equal_ones_share_them():
    [sent] = sent_by(LayerWise(density=0.1), ONE, updates(1, 200))
    assert len(sent) == 20
    twins = Layout.from_shapes({"a": (100,), "b": (100,)})
    g = updates(1, 100)[0]
    [sent] = sent_by(LayerWise(density=0.1), twins, [np.concatenate([g, g])])
    assert error(np.concatenate([g, g]), sent) <= 2 * error(
        g, sent_by(TopK(k=10), Layout((twins.segments[0],)), [g])[0]
    )


def test_nothing_to_choose_from_is_sent_evenly():
    [sent] = sent_by(LayerWise(density=0.1), LAYERS, [np.zeros(LAYERS.size, np.float32)])
    assert counts(sent, LAYERS) == [30, 40, 10, 1]


def test_the_payload_is_about_as_long_as_was_reckoned():
    layout = Layout.from_shapes({"a": (20_000,), "b": (5_000,), "c": (50_000,)})
    g = updates(1, layout.size)[0] * np.repeat([3.0, 1.0, 0.3], [20_000, 5_000, 50_000]).astype(np.float32)
    op = Quantized(LayerWise(density=0.02, value_bits=1), bits=1)
    [sent] = sent_by(op, layout, [g])
    found, budget = len(joulegrad.encode(sent, layout)), payload_bytes(layout, [400, 100, 1000], 1)
    assert 0.9 * budget < found < 1.03 * budget


# --- all of them ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Clipped(TopK(k=1), norm=0), "norm must be a finite number > 0, got 0"),
        (lambda: Clipped(TopK(k=1), norm=float("inf")), "norm must be a finite number > 0, got inf"),
        (lambda: Clipped(3), r"Clipped goes around an operator such as TopK\(k=10\), got 3"),
        (lambda: ErrorFeedback(Clipped(TopK(k=1))), r"would come back; write Clipped\(ErrorFeedback\(…\)\)"),
        (lambda: MomentumCorrection(Clipped(TopK(k=1))), r"would come back; write Clipped\(MomentumCorrection\(…\)\)"),
        (lambda: PerChunk(), "PerChunk needs k"),
        (lambda: PerChunk(k=1, density=0.1), "PerChunk takes k or density, not both"),
        (lambda: PerChunk(k=1, entries=0), "entries must be a whole number ≥ 1, got 0"),
        (lambda: LayerWise(density=0), r"density must be in \(0, 1\], got 0"),
        (lambda: LayerWise(density=0.1, value_bits=3), "value_bits must be 1, 2, 4, 8, 16 or 32, got 3"),
    ],
)
def test_mistakes_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize("op", [PerChunk(k=1), LayerWise(density=0.1), Clipped(TopK(k=1))], ids=lambda op: repr(op)[:9])
def test_what_is_not_finite_is_located(op):
    g = torch.zeros(200)
    g[7] = torch.nan
    with pytest.raises(ValueError, match=r"the update holds nan at entry 7, w\[7\]"):
        op(g, op.init(ONE))


@pytest.mark.parametrize(
    "text",
    [
        "RandomK(density=0.01, unbiased=True)",
        "ErrorFeedback(RandomK(density=0.01))",
        "ErrorFeedback(Quantized(TopK(density=0.01), bits=1))",
        "Clipped(MomentumCorrection(WarmUp(PerLayer(TopK(density=0.01)))), norm=2.0)",
        "Quantized(TopK(density=1.0), bits=4, rounding='stochastic')",
        "Quantized(TopK(density=1.0), rounding='stochastic')",
        "ErrorFeedback(LayerWise(density=0.01))",
        "ErrorFeedback(Quantized(LayerWise(density=0.01, value_bits=1), bits=1))",
        "ErrorFeedback(Quantized(PerChunk(density=0.01), bits=2), decay=0.95)",
    ],
)
def test_each_is_the_text_of_an_experiment(text):
    experiment = Experiment.of({"compress": text})
    assert experiment.to_dict()["compress"] == text
    assert isinstance(experiment.compress, RandomK | ErrorFeedback | Clipped | Quantized)
