"""Sites, splits and what a folder may hold."""

from __future__ import annotations

from pathlib import Path

import pytest
from support import problems_of, refused

from fedstrata.core.errors import ConfigurationError, DataError
from fedstrata.core.settings.source import read_source
from fedstrata.data.readers import FORMATS, read
from fedstrata.engine.prepare import prepare


def tree(root: Path, *paths: str) -> Path:
    """Makes files: a `.tsv` of one sentence, a `.txt` of a word, and without an ending a note of brat."""
    for path in paths:
        for file in (root / path,) if "." in path else (root / f"{path}.txt", root / f"{path}.ann"):
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text({".txt": "Fever", ".tsv": "Fever\tB-problem\n"}.get(file.suffix, ""))
    return root


def places(root: Path, format: str) -> list[tuple[str, str, str]]:
    return [(item.id, item.site, item.metadata.get("split", "")) for item in read(root, format)]


LAYOUTS: dict[str, dict[str, tuple[str, str]]] = {
    "one site": {"a": ("", ""), "b": ("", ""), "b-1": ("", "")},
    "sites": {"north/a": ("north", ""), "south/a": ("south", "")},
    "splits": {"Dev/b": ("", "validation"), "test/c": ("", "test"), "train/a": ("", "train")},
    "splits of a site": {"north/test/a": ("north", "test"), "north/train/a": ("north", "train")},
    "sites of a split": {"train/north/a": ("north", "train"), "valid/south/a": ("south", "validation")},
    "a folder of a site": {"north/ward/a": ("north/ward", ""), "south/b": ("south", "")},
    "splits with a name": {"MIMIC_test/a": ("", "test"), "MIMIC_train/a": ("", "train")},
    "a split with a number": {"test-1/a": ("", "test"), "train/a": ("", "train")},
    "a site like a split": {"test-hospital/a": ("test-hospital", "")},
    "sites like a split": {"training-a/b": ("training-a", ""), "training-c/d": ("training-c", "")},
    "splits of a site like one": {"north/train/a": ("north", "train"), "test-b/train/a": ("test-b", "train")},
    "a note called test": {"test": ("", ""), "x": ("", "")},
    "a note of a test": {"lab-test-2": ("", ""), "x": ("", "")},
}
"""Notes in the order in which they are read, with their sites and splits."""


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
def test_where_a_note_lies_says_its_site_and_its_split(
    tmp_path: Path, layout: dict[str, tuple[str, str]]
) -> None:
    tree(tmp_path, *reversed(layout), "empty/.keep", ".hidden.txt", ".old/c.txt", "README.txt")
    assert places(tmp_path, "brat") == [(note, *place) for note, place in layout.items()]


def test_files_named_like_splits(tmp_path: Path) -> None:
    tree(tmp_path, "north/train.tsv", "north/devel.tsv", "south/TEST.tsv")
    assert places(tmp_path, "conll") == [
        ("north/devel/devel-1", "north", "validation"),
        ("north/train/train-1", "north", "train"),
        ("south/TEST/TEST-1", "south", "test"),
    ]
    tree(tmp_path / "texts", "lab-test-2.txt", "B.TXT")  # a text is none, whatever it is called
    assert places(tmp_path / "texts", "text") == [("B", "", ""), ("lab-test-2", "", "")]


@pytest.mark.parametrize(
    ("names", "splits"),
    [
        (["train-00000-of-00001", "test-00000-of-00001"], ["train", "test"]),
        (["train-00000-of-00002-1f3c", "train-00001-of-00002-9d", "test"], ["train", "train", "test"]),
        (["x_train", "x_dev", "x_test"], ["train", "validation", "test"]),
        (["train_1", "train_2"], ["train", "train"]),
        (["MIMIC_train", "MIMIC.Test.v2"], ["train", "test"]),
        (["MTS-Dialog-TrainingSet", "MTS-Dialog-TestSet-1-MEDIQA-Chat-2023"], ["train", "test"]),
        (
            ["NCBItrainset_corpus", "NCBIdevelopset_corpus", "CDR_TestSet.PubTator"],
            ["train", "validation", "test"],
        ),
    ],
)
def test_files_with_the_name_of_a_split_among_the_parts_of_their_own(
    tmp_path: Path, names: list[str], splits: list[str]
) -> None:
    tree(tmp_path, *(f"data/{name}.tsv" for name in names))
    expected = {(f"data/{name}/{name}-1", "data", split) for name, split in zip(names, splits, strict=True)}
    assert set(places(tmp_path, "conll")) == expected


def test_shards_of_a_split_are_read_in_order(tmp_path: Path) -> None:
    for shard in (1, 0):
        (tmp_path / f"train-0000{shard}-of-00002.tsv").write_text(f"{shard}\tO\n")
    documents = read(tmp_path, "conll")
    assert [(item.text, item.metadata["split"]) for item in documents] == [("0", "train"), ("1", "train")]


def test_one_file_has_no_site_and_no_split(tmp_path: Path) -> None:
    tree(tmp_path, "train.tsv", "a", "b.txt")
    assert places(tmp_path / "train.tsv", "conll") == [("train-1", "", "")]
    assert places(tmp_path / "a.txt", "brat") == [("a", "", "")]
    with refused(DataError, "not_annotated", at="b.txt"):
        read(tmp_path / "b.txt", "brat")
    with refused(DataError, "wrong_format", at="a.ann", values=["*.txt"]):
        read(tmp_path / "a.ann", "brat")


@pytest.mark.parametrize(
    ("format", "paths", "code", "values"),
    [
        ("brat", ["a", "b.txt"], "not_annotated", ["b.txt", "b.ann"]),
        ("brat", ["x/a", "y/b.txt"], "not_annotated", ["b.txt"]),
        ("brat", ["a.txt", "b.ann"], "missing", ["b.ann", "b.txt"]),
        ("i2b2", ["txt/a.txt", "concept/b.con"], "missing", ["b.con"]),
        ("brat", ["a", "x/b"], "conflict", ["(a.txt)", "(x)"]),
        ("brat", ["train/a.txt", "north/b.txt"], "ambiguous", ["train is", "north is"]),
        ("conll", ["train.tsv", "train_dev.tsv"], "ambiguous", ["train.tsv is", "train_dev.tsv is"]),
        (
            "conll",
            ["patient_test_results.tsv", "notes.tsv"],
            "ambiguous",
            ["patient_test_results.tsv is", "notes.tsv is"],
        ),
        ("brat", ["test-hospital/a.txt", "north/b.txt"], "ambiguous", ["test-hospital is", "north is"]),
        ("brat", ["x_train/a.txt", "x_test/b.txt", "y/c.txt"], "ambiguous", ["x_test is", "y is"]),
        ("conll", ["a.tsv/x.md", "notes.txt"], "not_enough_data", ["*.conll, *.tsv"]),
        ("i2b2", ["a.con~", "b.text"], "not_enough_data", ["*.txt with *.con"]),
    ],
)
def test_layouts_that_could_be_misread_are_refused(
    tmp_path: Path, format: str, paths: list[str], code: str, values: list[object]
) -> None:
    with refused(DataError, code, values=values):
        read(tree(tmp_path, *paths), format)


def test_texts_without_annotations_can_be_left_out_or_kept(tmp_path: Path) -> None:
    tree(tmp_path, "a", "b.txt", "README.txt")
    assert [item.id for item in read(tmp_path, "brat", unannotated="skip")] == ["a"]
    assert [item.id for item in read(tmp_path, "brat", unannotated="keep")] == ["a", "b"]
    with refused(DataError, "not_annotated", at="b.txt"):
        read(tmp_path, "brat")
    (tmp_path / "a.ann").unlink()
    assert [item.id for item in read(tmp_path, "brat", unannotated="skip")] == ["a", "b"]


@pytest.mark.parametrize("format", ["brat", "i2b2", "text"])
def test_what_says_what_a_folder_holds_is_no_document_unless_it_is_annotated(
    tmp_path: Path, format: str
) -> None:
    tree(tmp_path, "a.txt", "README.txt", "License.txt")
    assert [item.id for item in read(tmp_path, format, unannotated="keep")] == ["a"]
    if suffix := FORMATS[format].annotation_suffix:
        tree(tmp_path, f"README{suffix}")
        assert [item.id for item in read(tmp_path, format, unannotated="skip")] == ["README"]


def test_all_wrong_files_are_named_at_once(tmp_path: Path) -> None:
    tree(tmp_path, "a", "b.txt", "c.txt")
    with refused(DataError, "not_annotated", at="c.txt", values=["2 files", "b.txt", "data.unannotated"]):
        read(tmp_path, "brat")
    tree(tmp_path, "b.ann", "c.ann")
    for name in ("a.txt", "c.txt"):
        (tmp_path / name).write_bytes(b"SECRET\xef")
    with pytest.raises(DataError) as raised:
        read(tmp_path, "brat")
    assert [each.path.name for each in raised.value.each] == ["a.txt", "c.txt"]
    assert "SECRET" not in str(raised.value)
    data = [f"data={{format: brat, path: {tmp_path}}}"]
    with pytest.raises(ConfigurationError) as wrong:
        prepare(read_source(None, data))
    assert problems_of(wrong.value) == [("data.path", "not_utf8")] * 2


def test_documents_of_one_id_and_of_another_site_than_their_folder_are_refused(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / f"{name}.jsonl").write_text('{"id": "n1", "text": ""}\n')
    with refused(DataError, "duplicate", at="b.jsonl", values=["'n1'", "a.jsonl"]):
        read(tmp_path, "jsonl")
    (tmp_path / "tree" / "south").mkdir(parents=True)
    (tmp_path / "tree" / "south" / "c.jsonl").write_text('{"id": "n1", "text": "", "site": "north"}')
    with refused(DataError, "conflict", at="c.jsonl", values=["n1", "'north'", "'south'"]):
        read(tmp_path / "tree", "jsonl")


def test_a_link_to_a_folder_above_does_not_repeat_documents(tmp_path: Path) -> None:
    tree(tmp_path, "north/a.txt")
    (tmp_path / "north" / "loop").symlink_to(tmp_path)
    (tmp_path / "south").symlink_to(tmp_path / "north")
    assert places(tmp_path, "brat") == [("north/a", "north", ""), ("south/a", "south", "")]


def test_paths_and_formats_that_do_not_exist(tmp_path: Path) -> None:
    with refused(DataError, "not_found", at="nowhere"):
        read(tmp_path / "nowhere", "brat")
    with refused(
        ConfigurationError, "unknown_name", at="data.format", values=["'bioc'", "text, i2b2, brat, conll"]
    ):
        read(tmp_path, "bioc")


def test_files_that_say_what_a_folder_holds_are_passed_over_and_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tree(tmp_path, "a", "README.txt", "CHANGELOG.txt", "README.md.txt", "README.md")
    assert places(tmp_path, "brat") == [("a", "", "")]
    assert "3 passed over" in caplog.text
    assert "CHANGELOG.txt, README.txt, README.md.txt" in caplog.text
    tree(tmp_path, "README.ann")  # which somebody has annotated
    assert [name for name, _, _ in places(tmp_path, "brat")] == ["README", "a"]
    tree(tmp_path / "texts", "about_fever.txt", "LICENSE.txt")
    assert [name for name, _, _ in places(tmp_path / "texts", "text")] == ["about_fever"]


@pytest.mark.parametrize("unannotated", ["refuse", "skip"])
def test_a_corpus_without_any_annotation_says_so_and_what_to_do(tmp_path: Path, unannotated: str) -> None:
    tree(tmp_path, "x/a.txt", "y/b.txt")
    data = f"data={{format: brat, path: {tmp_path}, unannotated: {unannotated}}}"
    with pytest.raises(ConfigurationError) as wrong:
        prepare(read_source(None, [data]))
    (problem,) = wrong.value.problems
    assert (problem.path, problem.code) == ("data.path", "not_annotated")
    for value in ("2 texts", "*.ann", "a.ann", "data.format: text", "data.unannotated: keep"):
        assert value in str(problem)
    assert problem.origin == "the command line"
