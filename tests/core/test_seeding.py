from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from fedstrata.core.seeding import Seed

paths = st.lists(st.one_of(st.text(max_size=5), st.integers(0, 9)), max_size=3)


@given(st.integers(0, 10), paths, st.integers(0, 10), paths)
def test_seeds_are_equal_exactly_when_root_and_path_are(
    root: int, path: list, other: int, other_path: list
) -> None:
    same = (root, path) == (other, other_path)
    assert (Seed(root).child(*path).integer() == Seed(other).child(*other_path).integer()) == same


def test_a_child_does_not_depend_on_what_was_drawn_before() -> None:
    root = Seed(3)
    before = root.child("a").numpy().random(4).tolist()
    root.child("b").numpy().random(100)
    assert root.child("a").numpy().random(4).tolist() == before
    assert root.child("a").torch().initial_seed() == root.child("a").integer()
