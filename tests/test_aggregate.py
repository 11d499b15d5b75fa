from __future__ import annotations

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from joulegrad import Layout, Quantized, SparseUpdate, TopK, mean


def update(pairs: dict[int, float], size: int = 4, buffers: list[float] | None = None) -> SparseUpdate:
    return SparseUpdate(
        torch.tensor(sorted(pairs), dtype=torch.int64),
        torch.tensor([pairs[i] for i in sorted(pairs)], dtype=torch.float32),
        size,
        buffers=None if buffers is None else torch.tensor(buffers),
    )


entries = st.dictionaries(st.integers(0, 3), st.floats(width=32, allow_nan=False, allow_infinity=False), max_size=4)
clients = st.lists(
    st.tuples(entries, st.integers(0, 10**6) | st.floats(0, 1e9, allow_subnormal=False)), min_size=1, max_size=6
).filter(lambda cs: sum(w for _, w in cs) > 0)


@settings(max_examples=300, deadline=None)
@given(clients, st.randoms(), st.sampled_from(["all", "senders"]))
def test_any_order_gives_the_same_bits(some, random, by):
    pairs = [(update(e), w) for e, w in some]
    shuffled = list(pairs)
    random.shuffle(shuffled)
    a, b = mean(pairs, by=by).update, mean(shuffled, by=by).update
    assert torch.equal(a.view(torch.int32), b.view(torch.int32))


@settings(max_examples=300, deadline=None)
@given(clients)
def test_the_mean_is_the_exact_one(some):
    """Against rational arithmetic, with catastrophic cancellation and denormals."""
    found = mean([(update(e), w) for e, w in some]).update.double()
    total = sum(Fraction(float(w)) for _, w in some)
    for j in range(4):
        # each term is rounded once, to float64; all else is exact until the end
        terms = [Fraction(float(np.float64(np.float32(e[j])) * np.float64(w))) for e, w in some if j in e]
        exact = float(sum(terms, Fraction(0)) / total)
        expected = torch.tensor(exact, dtype=torch.float64).float().double()
        assert math.isclose(found[j].item(), expected.item(), rel_tol=2**-22, abs_tol=1e-44)


def test_cancellation_that_float64_sums_get_wrong():
    pairs = [(update({0: v}), 1) for v in (1e30, 1.0, -1e30, 1e-20)]
    results = {mean(list(p)).update[0].item() for p in itertools.permutations(pairs)}
    assert results == {0.25}


def test_by_senders_divides_by_those_who_sent():
    pairs = [(update({0: 2.0, 1: 4.0}), 1), (update({1: 8.0}), 3)]
    assert mean(pairs).update.tolist() == [0.5, 7.0, 0.0, 0.0]
    assert mean(pairs, by="senders").update.tolist() == [2.0, 7.0, 0.0, 0.0]
    silent = [(update({0: 2.0}), 0), (update({1: 8.0}), 3)]
    assert mean(silent, by="senders").update.tolist() == [0.0, 8.0, 0.0, 0.0]


def test_a_stream_holds_one_update_at_a_time():
    alive: list[int] = []
    most = 0

    class Tracked(SparseUpdate):
        def __del__(self) -> None:
            alive.pop()

    def stream():
        nonlocal most
        for n in range(20):
            alive.append(n)
            one = Tracked(torch.tensor([n % 4]), torch.tensor([1.0]), 4)
            most = max(most, len(alive))
            yield one, 1
            del one

    assert mean(stream()).update.tolist() == [0.25] * 4
    assert most <= 2


def test_clipping_to_the_median_norm():
    pairs = [(update({0: 1.0}), 1), (update({1: 2.0}), 1), (update({2: 100.0}), 1)]
    assert mean(pairs, clip="median").update.tolist() == pytest.approx([1 / 3, 2 / 3, 2 / 3, 0])
    assert mean(pairs, clip=0.5).update.tolist() == pytest.approx([0.5 / 3] * 3 + [0])
    assert mean(iter(pairs), clip=1e9).update.tolist() == mean(pairs).update.tolist()
    with pytest.raises(ValueError, match="reads the updates twice: pass a list"):
        mean(iter(pairs), clip="median")


def test_buffers_are_averaged_with_the_same_weights_and_not_clipped():
    pairs = [(update({0: 9.0}, buffers=[1.0, 2.0]), 1), (update({}, buffers=[3.0, 6.0]), 3)]
    assert mean(pairs, clip=1e-3).buffers.tolist() == [2.5, 5.0]
    assert mean([(update({0: 1.0}), 1)]).buffers is None
    with pytest.raises(ValueError, match="update 1 carries no buffer entries, those before it 2"):
        mean([pairs[0], (update({}), 1)])


def test_half_precision_and_quantised_values():
    sent = SparseUpdate(torch.tensor([1]), torch.tensor([0.5], dtype=torch.bfloat16), 4)
    assert mean([(sent, 1)]).update.tolist() == [0, 0.5, 0, 0]
    op = Quantized(TopK(k=2), bits=1)
    coded, _ = op(torch.tensor([3.0, -1.0, 0.0, 0.0]), op.init(Layout.from_shapes({"w": (4,)})))
    assert mean([(coded, 7)]).update.tolist() == [2, -2, 0, 0]


@pytest.mark.parametrize(
    ("pairs", "options", "message"),
    [
        ([], {}, "there are no updates to average"),
        ([], {"clip": "median"}, "there are no updates to average"),
        ([(update({0: 1.0}), math.nan)], {}, "update 0 has weight nan"),
        ([(update({0: 1.0}), 1), (update({0: 1.0}), -1)], {}, "update 1 has weight -1"),
        ([(update({0: 1.0}), math.inf)], {}, "a weight is a finite number ≥ 0"),
        ([(update({0: 1.0}), 0)], {}, "the weights of all 1 updates are zero"),
        ([(update({0: 1.0}), 1), (update({}, size=5), 1)], {}, "update 1 has 5 entries, those before it 4"),
        ([(update({0: 1.0}), 1)], {"by": "sender"}, "by must be 'all' or 'senders'"),
        ([(update({0: 1.0}), 1)], {"clip": -1}, "clip must be 'median', a positive norm or None"),
    ],
)
def test_what_cannot_be_averaged(pairs, options, message):
    with pytest.raises(ValueError, match=message):
        mean(pairs, **options)
