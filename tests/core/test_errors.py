"""What messages say, and what they never do."""

from __future__ import annotations

import pytest

from fedstrata.core.errors import did_you_mean, printable


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ("no such client", "no such client"),
        ("\x1b[2J\x07gone\r\nline", "\ufffd[2J\ufffdgone\ufffd\ufffdline"),
        ("right\u202eleft\u200b", "right\ufffdleft\ufffd"),
        ("a" * 501, "a" * 500 + " ..."),
    ],
)
def test_what_another_machine_said_cannot_steer_a_terminal(said: str, shown: str) -> None:
    assert printable(said) == shown


def test_a_name_is_asked_for_only_where_one_is_near() -> None:
    assert did_you_mean("epoch", ["epochs", "rounds"]) == "did you mean 'epochs'?"
    assert did_you_mean("colour", ["epochs", "rounds"]) == did_you_mean("colour", []) == ""
