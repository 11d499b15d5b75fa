from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from sklearn.datasets import load_digits
from torch import nn

import joulegrad as jg
from joulegrad import (
    CWMP,
    Blocks,
    ErrorFeedback,
    LayerType,
    Layout,
    MomentumCorrection,
    PerLayer,
    Quantized,
    RandomK,
    Rounded,
    Threshold,
    TopK,
    Uniform,
    WarmUp,
)

LAYOUT = Layout.from_shapes({"a": (40,), "b": (3, 20)})


def rounds(n: int, seed: int = 0) -> list[torch.Tensor]:
    rng = np.random.default_rng(seed)
    return [torch.tensor(rng.standard_t(3, LAYOUT.size), dtype=torch.float32) for _ in range(n)]


def test_error_feedback_is_the_textbook_loop():
    op, decay = ErrorFeedback(TopK(k=5), decay=0.5), 0.5
    state, residual = op.init(LAYOUT), torch.zeros(LAYOUT.size)
    for update in rounds(5):
        sent, state = op(update, state)
        given = update + decay * residual
        residual = given.clone()
        residual[given.abs().topk(5).indices] = 0
        assert torch.equal(state.residual, residual)
        assert torch.equal(sent.to_dense(), given - residual)


def test_momentum_correction_is_dgcs_loop_with_both_memories_masked():
    op = MomentumCorrection(TopK(k=5), momentum=0.9)
    state = op.init(LAYOUT)
    u = v = torch.zeros(LAYOUT.size)
    for g in rounds(5):
        sent, state = op(g, state)
        u = 0.9 * u + g
        v = v + u
        mask = torch.zeros(LAYOUT.size, dtype=torch.bool)
        mask[v.abs().topk(5).indices] = True
        torch.testing.assert_close(sent.to_dense(), torch.where(mask, v, 0.0))
        u, v = torch.where(mask, 0.0, u), torch.where(mask, 0.0, v)
        torch.testing.assert_close(state.velocity, u)
        torch.testing.assert_close(state.residual, v)


def test_momentum_correction_keeps_what_rounding_lost():
    op = MomentumCorrection(Quantized(TopK(k=5), bits=1), momentum=0.9)
    sent, state = op(rounds(1)[0], op.init(LAYOUT))
    assert bool((state.velocity[sent.indices] == 0).all())
    assert bool((state.residual[sent.indices] != 0).any())


def test_many_clients_start_from_one_value():
    op = ErrorFeedback(CWMP(k=5, cost=Uniform()))
    start = op.init(LAYOUT)
    _, one = op(rounds(1, seed=1)[0], start)
    _, two = op(rounds(1, seed=2)[0], start)
    assert not torch.equal(one.residual, two.residual)
    assert not start.residual.any()
    assert one.inner.prices is two.inner.prices  # costs are shared, residuals are not


def test_a_lost_payload_is_as_if_never_sent():
    op = ErrorFeedback(Quantized(RandomK(k=5, seed=1), bits=4, rounding="stochastic"))
    lost_on_the_way = {1, 2}
    state = op.init(LAYOUT)
    arrived = torch.zeros(LAYOUT.size)
    given = torch.zeros(LAYOUT.size)
    for n, update in enumerate(rounds(6)):
        sent, after = op(update, state)
        if n in lost_on_the_way:
            continue  # the old state is kept; this round's update is lost with its payload
        state = after
        given += update
        arrived += sent.to_dense()
    torch.testing.assert_close(arrived + state.residual, given, rtol=1e-5, atol=1e-5)


def test_warm_up_follows_its_schedule_from_anywhere_in_the_chain():
    layout = Layout.from_shapes({"w": (10_000,)})
    update = torch.randn(10_000, generator=torch.Generator().manual_seed(0))
    for op in (
        WarmUp(ErrorFeedback(Quantized(CWMP(density=0.01, cost=Uniform())))),
        ErrorFeedback(WarmUp(TopK(density=0.01))),
    ):
        state, counts = op.init(layout), []
        for _ in range(6):
            sent, state = op(update, state)
            counts.append(len(sent))
        expected = [0.25 * (0.01 / 0.25) ** (t / 4) for t in range(4)] + [0.01, 0.01]
        assert counts == [int(10_000 * d) for d in expected]
    at_once = WarmUp(TopK(density=0.1), steps=0)
    assert len(at_once(update, at_once.init(layout))[0]) == 1_000
    with pytest.raises(ValueError, match=r"begins denser: start 0.25 is below the density 0.5"):
        WarmUp(TopK(density=0.5))


values = st.lists(st.floats(-100, 100, width=32), min_size=1, max_size=60)


@settings(max_examples=300, deadline=None)
@given(values, st.sampled_from([1, 2, 4, 8]))
def test_quantized_rounds_to_the_nearest_level(g, bits):
    layout = Layout.from_shapes({"a": (len(g),)})
    update = torch.tensor(g)
    sent, _ = Quantized(TopK(density=1.0), bits=bits)(update, Quantized(TopK(density=1.0)).init(layout))
    assert sent.indices.tolist() == update.nonzero().flatten().tolist()  # no level is zero, so zeros stay
    assert torch.equal(sent.codes.values(), sent.values)
    given = update[sent.indices].double()
    if bits == 1:
        expected = given.sign() * given.abs().mean() if len(given) else given
        torch.testing.assert_close(sent.values.double(), expected, rtol=1e-6, atol=1e-44)
        return
    most = 2**bits - 1
    scale = sent.codes.scales.double()
    levels = scale * torch.arange(-most, most + 1, 2, dtype=torch.float64)
    nearest = (given[:, None] - levels[None]).abs().min(1).values if len(given) else given
    torch.testing.assert_close(
        (sent.values.double() - given).abs(), nearest, rtol=1e-6, atol=1e-6 * float(scale) * most
    )
    assert bool((sent.values.double() * given >= 0).all())  # signs are kept


def test_quantized_scales_are_per_layer_and_bits_are_few():
    update = torch.cat([torch.full((40,), 100.0), torch.full((60,), 0.01)])
    op = Quantized(TopK(density=1.0), bits=1)
    sent, _ = op(update, op.init(LAYOUT))
    assert sent.codes.scales.tolist() == pytest.approx([100.0, 0.01])
    assert sent.codes.counts.tolist() == [40, 60]
    torch.testing.assert_close(sent.values, update)


@pytest.mark.parametrize("bits", [1, 2, 4, 8])
def test_stochastic_rounding_is_unbiased(bits):
    op = Quantized(TopK(density=1.0), bits=bits, rounding="stochastic", seed=3)
    update = torch.linspace(-2, 3, 100)
    state, total, n = op.init(LAYOUT), torch.zeros(100, dtype=torch.float64), 4000
    for _ in range(n):
        sent, state = op(update, state)
        total += sent.to_dense()
    spacing = 2 * 3 / (2**bits - 1)
    assert float((total / n - update).abs().max()) < 4 * spacing / 2 / math.sqrt(n)


@pytest.mark.parametrize("bits", [1, 2, 4, 8])
def test_quantized_stays_finite_at_the_ends_of_float32(bits):
    most = torch.finfo(torch.float32).max
    op = Quantized(TopK(density=1.0), bits=bits)
    for update in (torch.full((100,), most), torch.full((100,), 1e-45), torch.tensor([most, 1e-45] * 50)):
        sent, _ = op(update, op.init(LAYOUT))
        assert bool(torch.isfinite(sent.values).all())


def test_rounded_values_are_sixteen_bits_and_saturate():
    for dtype, kept in (("bf16", torch.bfloat16), ("fp16", torch.float16)):
        op = ErrorFeedback(Rounded(TopK(k=3), dtype=dtype))
        update = torch.zeros(LAYOUT.size)
        update[:3] = torch.tensor([1e6, 1.2345678, -1e-9])
        sent, state = op(update, op.init(LAYOUT))
        assert sent.values.dtype == kept
        assert bool(torch.isfinite(sent.values).all())
        assert torch.equal(sent.to_dense() + state.residual, update)
    assert state.residual[0] == 1e6 - 65504


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ErrorFeedback(ErrorFeedback(TopK(k=1))), "remembered twice"),
        (lambda: ErrorFeedback(MomentumCorrection(TopK(k=1))), "ErrorFeedback cannot go around MomentumCorrection"),
        (lambda: MomentumCorrection(WarmUp(ErrorFeedback(TopK(density=0.1)))), "around ErrorFeedback"),
        (lambda: ErrorFeedback(RandomK(k=1, unbiased=True)), "its residual would grow without bound"),
        (lambda: Quantized(ErrorFeedback(TopK(k=1))), r"write ErrorFeedback\(Quantized\(…\)\)"),
        (lambda: Rounded(MomentumCorrection(TopK(k=1))), r"write ErrorFeedback\(Rounded\(…\)\)"),
        (lambda: Quantized(Rounded(TopK(k=1))), "values are rounded once"),
        (lambda: Rounded(Quantized(TopK(k=1))), "values are rounded once"),
        (lambda: Quantized(Quantized(TopK(k=1))), "values are rounded once"),
        (lambda: PerLayer(Quantized(TopK(k=1))), "PerLayer chooses entries"),
        (lambda: Blocks(WarmUp(TopK(density=0.1))), "Blocks chooses entries"),
        (lambda: WarmUp(WarmUp(TopK(density=0.1))), "one warm-up is enough"),
        (lambda: WarmUp(TopK(k=5)), "give the rule one"),
        (lambda: WarmUp(Threshold(at=1.0)), "give the rule one"),
        (lambda: WarmUp(TopK(density=0.1), start=0.0), r"start must be in \(0, 1\], got 0.0"),
        (lambda: WarmUp(TopK(density=0.1), steps=1.5), "steps must be a whole number"),
        (lambda: ErrorFeedback(TopK(k=1), decay=1.1), r"decay must be in \[0, 1\], got 1.1"),
        (lambda: MomentumCorrection(TopK(k=1), momentum=1), "momentum must be below 1"),
        (lambda: Quantized(TopK(k=1), bits=3), "bits must be 1, 2, 4 or 8, got 3"),
        (lambda: Quantized(TopK(k=1), rounding="floor"), "rounding must be 'nearest' or 'stochastic'"),
        (lambda: Rounded(TopK(k=1), dtype="float16"), "dtype must be 'fp16' or 'bf16'"),
    ],
)
def test_what_makes_no_sense_is_refused_with_the_reason(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_state_through_safetensors_continues_bit_for_bit(tmp_path):
    op = WarmUp(
        MomentumCorrection(
            Quantized(PerLayer(Blocks(CWMP(density=0.1, cost=Uniform()), entries=4)), bits=4, rounding="stochastic")
        )
    )
    state, whole = op.init(LAYOUT), []
    for n, update in enumerate(rounds(8)):
        if n == 4:
            save_file(jg.state_dict(state), tmp_path / "client.safetensors")
        sent, state = op(update, state)
        whole.append(sent)
    state = jg.load_state_dict(op.init(LAYOUT), load_file(tmp_path / "client.safetensors"))
    for update, expected in zip(rounds(8)[4:], whole[4:], strict=True):
        sent, state = op(update, state)
        assert sent == expected


def test_a_state_of_something_else_is_refused():
    feedback, momentum = ErrorFeedback(TopK(k=1)), MomentumCorrection(TopK(k=1))
    saved = jg.state_dict(feedback.init(LAYOUT))
    with pytest.raises(ValueError, match=r"lacks \['velocity'\]"):
        jg.load_state_dict(momentum.init(LAYOUT), saved)
    with pytest.raises(ValueError, match=r"has \['velocity'\], which this operator does not remember"):
        jg.load_state_dict(feedback.init(LAYOUT), jg.state_dict(momentum.init(LAYOUT)))
    with pytest.raises(ValueError, match=r"of shape \(100,\), expected torch.float32 of shape \(7,\)"):
        jg.load_state_dict(feedback.init(Layout.from_shapes({"w": (7,)})), saved)


def test_two_clients_three_rounds_in_literal_numbers():
    """The protocol by hand: w ← w − Σ p_k (m_k ⊙ g_k) with error feedback, quadratic losses (w − t)² / 2."""
    layout = Layout.from_shapes({"w": (2,)})
    op = ErrorFeedback(TopK(k=1))
    targets, weights = [torch.tensor([4.0, 1.0]), torch.tensor([0.0, -3.0])], [3, 1]
    states, w, seen = [op.init(layout)] * 2, torch.zeros(2), []
    for _ in range(3):
        sent = []
        for k, target in enumerate(targets):
            update, states[k] = op(0.5 * (w - target), states[k])
            sent.append((update, weights[k]))
        w = w - jg.mean(sent).update
        seen.append(w.tolist())
    # Round 3, by hand: client 0 gives (−0.78125, −2.0390625), client 1 (1.96875, 1.1484375); each sends the larger.
    assert seen == [[1.5, -0.375], [2.4375, -0.703125], [1.9453125, 0.826171875]]


def test_error_feedback_rescues_a_starved_classifier():
    """At 0.5 % CWMP starves the classifier without memory; with it, the same bytes train it."""
    torch.manual_seed(0)
    digits = load_digits()
    x, y = torch.tensor(digits.images, dtype=torch.float32).flatten(1) / 16, torch.tensor(digits.target)
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    layout, cost = Layout.of(model), LayerType(classifier=50.0)
    start = layout.values(model)

    def accuracy(op) -> float:
        layout.assign(model, start)
        state = op.init(layout)
        for _ in range(150):
            model.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            sent, state = op(0.5 * layout.grad(model), state)
            layout.assign(model, layout.values(model) - sent.to_dense())
        return float((model(x).argmax(1) == y).float().mean())

    plain = CWMP(density=0.005, cost=cost)
    assert accuracy(ErrorFeedback(plain)) > accuracy(plain) + 0.1
