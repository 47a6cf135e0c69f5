from __future__ import annotations

import pytest

from fedstrata.data.synthetic.template import Annotation, Choice, Scope, Shorthand, Slot, parse, without


def test_every_notation_is_read() -> None:
    assert parse("[<negation:no> {Sign}] (a|b) %history of%") == (
        Scope((Annotation("negation", ("no",)), " ", Slot("sign"))),
        " ",
        Choice((("a",), ("b",))),
        " ",
        Shorthand("history of"),
    )


def test_parentheses_without_a_bar_are_text() -> None:
    assert parse("x (3.5-5.0)") == ("x ", Choice((("(", "3.5-5.0", ")"),)))


def test_an_option_may_be_empty_or_hold_annotations() -> None:
    (choice,) = parse("(|<test:{lab}>)")
    assert choice == Choice(((), (Annotation("test", (Slot("lab"),)),)))


@pytest.mark.parametrize("source", ["(a|b", "[a", "<test:a", "a)", "a]", "{", "a > b"])
def test_an_unbalanced_template_is_refused(source: str) -> None:
    with pytest.raises(ValueError, match="template"):
        parse(source)


def test_unsuitable_options_go_and_an_alternative_without_any_goes_too() -> None:
    assert without("(prostate|liver|bone) mass", ["prostate"]) == "(liver|bone) mass"
    assert without("(prostate|liver) mass", ["prostate"]) == "liver mass"
    assert without("(prostate|prostatic) mass", ["prostat"]) == ""
    assert without("prostate (mass|cyst)", ["prostate"]) == ""
