"""The tokens that are written: whole words and numbers, and nothing lost."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedstrata.data.writers.tokens import tokenise, trimmed


def words(text: str, cuts: tuple[int, ...] = ()) -> list[str]:
    return [text[start:end] for start, end in tokenise(text, cuts)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Hgb 7.35, WBC 1,000.5.", "Hgb|7.35|,|WBC|1,000.5|."),
        ("metoprolol 12.5mg p.o. b.i.d. (prn)", "metoprolol|12.5mg|p.o.|b.i.d.|(|prn|)"),
        ("on 03/14/2101 at 12:30, BP 120/80", "on|03/14/2101|at|12:30|,|BP|120/80"),
        ("patient's x-ray -- 5 mg/dL", "patient's|x-ray|--|5|mg/dL"),
        ("Plan:\n1. D/C home.\n----------", "Plan|:|1|.|D/C|home|.|----------"),
        ("[**2101-3-4**] q.4-6 h.", "[|**|2101-3-4|**|]|q|.|4-6|h|."),
        (
            "cafe\u0301 na\u00efve\u00a0\u00b5g \u2265 5\u202f% \u2019tis",
            "cafe\u0301|na\u00efve|\u00b5g|\u2265|5|%|\u2019|tis",
        ),
        ("p.oral U.S.A e.g. a.b.cd", "p|.|oral|U.S.A|e.g.|a.b|.|cd"),
        (
            "\u0928\u092e\u0938\u094d\u0924\u0947 \U0001f600\U0001f600",
            "\u0928\u092e\u0938\u094d\u0924\u0947|\U0001f600|\U0001f600",
        ),
    ],
)
def test_what_belongs_together_stays_together(text: str, expected: str) -> None:
    assert words(text) == expected.split("|")


@given(st.one_of(st.text(), st.text(alphabet="a1.-/', \n:")), st.lists(st.integers(0, 30)))
def test_every_character_is_in_one_token_and_no_token_crosses_a_cut(text: str, offsets: list[int]) -> None:
    cuts = [offset for offset in offsets if offset <= len(text)]
    tokens = tokenise(text, cuts)
    covered = [offset for start, end in tokens for offset in range(start, end)]
    assert covered == [
        offset for offset, character in enumerate(text) if not character.isspace() and character != "\ufeff"
    ]
    assert all(start < end for start, end in tokens)
    assert not any(start < cut < end for start, end in tokens for cut in cuts)


def test_white_space_is_taken_off_both_ends() -> None:
    assert trimmed("  a b\u00a0\n", 1, 7) == (2, 5)
    assert trimmed(" \u2028\ufeff", 0, 3) is None
