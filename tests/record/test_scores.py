"""Scores as tables."""

from __future__ import annotations

from fedstrata.record.scores import compared, score_tables


def test_types_that_have_other_scores_come_in_a_table_of_their_own() -> None:
    total, single = score_tables({"micro_f1": 0.5, "auc": 1.0, "f1/250.00": 0.25, "f1/401.9": 1.0})
    assert total.columns == ("score",)
    assert total.rows == (("micro_f1", ("0.500",)), ("auc", ("1.000",)))
    assert single.columns == ("f1",)
    assert single.rows == (("250.00", ("0.250",)), ("401.9", ("1.000",)))


def test_a_type_without_a_score_has_a_dash() -> None:
    (table,) = score_tables({"f1": 0.5, "recall": 0.5, "f1/drug": 0.25, "recall/drug": 1.0, "f1/test": 1.0})
    assert table.rows[-1] == ("test", ("1.000", "-"))


def test_no_scores_are_no_table() -> None:
    assert score_tables({}) == []


def test_several_side_by_side() -> None:
    table = compared({"a": {"f1": 0.5, "f1/drug": 1.0}, "b": {"f1": 0.25}})
    assert (table.columns, table.rows) == (("a", "b"), (("f1", ("0.500", "0.250")),))
