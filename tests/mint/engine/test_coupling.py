"""Items that have keys in common, against a closure made by hand."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from mint.engine.coupling import connected


@given(st.lists(st.frozensets(st.integers(0, 12), min_size=1, max_size=4), max_size=12))
def test_runs_are_the_connected_components_in_order(keys):
    items = [(i,) for i in range(len(keys))]
    runs = connected(items, lambda item: keys[item[0]])
    reached = [{j for j in range(len(keys)) if keys[i] & keys[j]} for i in range(len(keys))]
    for _ in keys:
        reached = [set().union(*(reached[j] for j in own)) for own in reached]
    expected = sorted({tuple(sorted(own)) for own in reached})
    assert [tuple(i for (i,) in run) for run in runs] == expected
