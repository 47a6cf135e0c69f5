"""Scores as tables."""

from __future__ import annotations

from fedstrata.record.scores import compared, headings, score_tables


def test_types_that_have_other_scores_come_in_a_table_of_their_own() -> None:
    total, single = score_tables({"micro_f1": 0.5, "auc": 1.0, "f1/250.00": 0.25, "f1/401.9": 1.0})
    assert total.columns == ("score",)
    assert total.rows == (("micro_f1", ("0.500",)), ("auc", ("1.000",)))
    assert single.columns == ("f1",)
    assert single.rows == (("250.00", ("0.250",)), ("401.9", ("1.000",)))


def test_a_type_without_a_score_has_a_dash() -> None:
    assert score_tables({}) == []
    (table,) = score_tables({"f1": 0.5, "recall": 0.5, "f1/drug": 0.25, "recall/drug": 1.0, "f1/test": 1.0})
    assert table.rows[-1] == ("test", ("1.000", "-"))


def test_several_side_by_side() -> None:
    table = compared({"a": {"f1": 0.5, "f1/drug": 1.0}, "b": {"f1": 0.25}})
    assert (table.columns, table.rows) == (("a", "b"), (("f1", ("0.500", "0.250")),))


def test_scores_that_no_type_has_come_in_a_table_of_their_own() -> None:
    scores = {"f1": 0.5, "lenient_f1": 0.75, "untyped_f1": 0.625, "f1/drug": 0.25, "lenient_f1/drug": 0.5}
    shared, rest = score_tables(scores)
    assert shared.columns == ("f1", "lenient_f1")
    assert shared.rows == (("all", ("0.500", "0.750")), ("drug", ("0.250", "0.500")))
    assert rest.rows == (("untyped_f1", ("0.625",)),)


def test_scores_of_different_types_come_in_tables_of_their_own() -> None:
    scores = {"ner_f1": 0.5, "re_f1": 0.75, "ner_f1/drug": 0.25, "ner_f1/test": 1.0, "re_f1/route": 0.5}
    mentions, relations = score_tables(scores)
    assert [name for name, _ in mentions.rows] == ["all", "drug", "test"]
    assert relations.rows == (("all", ("0.750",)), ("route", ("0.500",)))
    (together,) = score_tables({**scores, "re_f1/drug": 0.125})
    assert ("drug", ("0.250", "0.125")) in together.rows
    assert together.rows[0] == ("all", ("0.500", "0.750"))


def test_headings_leave_out_what_there_is_no_room_for_but_not_the_score_that_judges() -> None:
    names = ["f1", "lenient_f1", "lenient_recall", "untyped_f1", "re_untyped_lenient_f1", "f1/drug"]
    assert headings(names, "f1") == ["f1", "lenient_f1"]
    assert headings(names, "untyped_f1") == ["f1", "lenient_f1", "untyped_f1"]
    assert headings(["micro_f1", "auc_labels_left_out"], None) == ["micro_f1", "auc_labels_left_out"]
