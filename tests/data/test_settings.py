"""Settings of the data that cannot be: each is one message, with its place and where it was set."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedstrata.core.settings.source import read_source
from fedstrata.engine.check import check_settings

CONLL, TABLE, JSONL = (
    "{format: conll, path: x, ",
    "{format: relation_table, path: x, ",
    "{format: jsonl, path: x, ",
)
FILES = "{format: conll, files: "
OFFSETS = ("head_start", "head_end", "tail_start", "tail_end", "no head_end")
WRONG = {
    CONLL + "conll: {token: 0}}": ("data.conll.token", "out_of_range", 1, "not 0"),
    CONLL + "conll: {tag: first}}": ("data.conll.tag", "wrong_type", "'last'", "'first'"),
    CONLL + "conll: {token: 2, tag: 2}}": ("data.conll", "conflict", "both are 2"),
    CONLL + "conll: {separator: ', '}}": ("data.conll.separator", "out_of_range", 1, "', '"),
    CONLL + "relation_table: {head: y}}": ("data", "no_effect", "data.relation_table"),
    TABLE + "relation_table: {head_start: a}}": ("data.relation_table", "missing", *OFFSETS),
    TABLE + "relation_table: {relation: kind, relation_type: causes}}": (
        "data.relation_table", "no_effect", "relation_type",
    ),
    TABLE + "relation_table: {names: [text, head]}}": (
        "data.relation_table", "unknown_name", "'tail'", "'text', 'head'",
    ),
    TABLE + "relation_table: {names: []}}": ("data.relation_table.names", "out_of_range", 1),
    TABLE + "relation_table: {separator: '||'}}": (
        "data.relation_table.separator", "out_of_range", 1, "'||'",
    ),
    TABLE + "relation_table: {unfound: keep}}": (
        "data.relation_table.unfound", "unknown_name", "'refuse'", "'skip'", "'keep'",
    ),
    TABLE + "relation_table: {heads: x}}": ("data.relation_table.heads", "unknown_key", "'head'"),
    JSONL + "limit: 0}": ("data.limit", "out_of_range", 1, "not 0"),
    JSONL + "limit: few}": ("data.limit", "wrong_type", "'few'"),
    "{limit: 4}": ("data", "no_effect", "data.limit", "'synthetic'", "data.synthetic.notes"),
    JSONL + "external: {y: {format: jsonl, path: z, limit: 3}}}": ("data.external.y.limit", "unknown_key"),
    CONLL + "files: {train: new}}": ("data", "conflict", "data.files", "data.path"),
    "{format: synthetic, files: {train: old}}": ("data", "no_effect", "data.files", "'synthetic'"),
    "{format: mimic, files: {train: old}}": ("data", "no_effect", "data.files", "'mimic'"),
    FILES + "{test: old}}": ("data", "missing", "data.files", "train"),
    FILES + "{train: old/a.conll, test: ./old/a.conll}}": (
        "data", "duplicate", "data.files.train", "data.files.test", "'./old/a.conll'",
    ),
    FILES + "{train: [old/a.conll, old/a.conll]}}": (
        "data", "duplicate", "data.files.train", "'old/a.conll'",
    ),
    FILES + "{train: old, test: old/a.conll}}": ("data", "duplicate", "'old/a.conll'", "'old'"),
    FILES + "{train: old, trial: new}}": (
        "data.files.trial", "unknown_name", "'train'", "'validation'", "'test'", "'trial'",
    ),
    FILES + "{train: []}}": ("data.files.train", "wrong_type", "1 item"),
    FILES + "{train: 3}}": ("data.files.train", "wrong_type", "not 3"),
    "{format: datasets, files: {train: old}, dataset: {config: x}}": (
        "data", "no_effect", "data.dataset", "data.files",
    ),
}  # fmt: skip


@pytest.mark.parametrize("data", WRONG)
def test_wrong_settings_are_one_message_with_their_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, data: str
) -> None:
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "a.conll").touch()
    monkeypatch.chdir(tmp_path)
    path, code, *values = WRONG[data]
    (problem,) = check_settings(read_source(None, [f"data={data}"])).problems
    assert (problem.path, problem.code, problem.origin) == (path, code, "the command line")
    assert all(str(value) in str(problem) for value in values)
