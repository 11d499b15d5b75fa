"""Laws × table, and every law seen red."""

from __future__ import annotations

import pytest
from broken import BROKEN
from laws import LAWS
from operators import ROWS


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
@pytest.mark.parametrize("law", LAWS, ids=lambda law: law.__name__)
def test_law(law, row):
    law(row)  # asserts


@pytest.mark.parametrize(("law", "row"), BROKEN, ids=lambda x: getattr(x, "__name__", ""))
def test_law_fails_on_the_operator_that_breaks_it(law, row):
    with pytest.raises(AssertionError):
        law(row)


def test_every_law_is_broken_by_something():
    assert {law for law, _ in BROKEN} == set(LAWS)
