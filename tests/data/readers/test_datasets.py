"""Data sets: CSV, JSON, parquet and saved folders, their columns, splits and classes."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError
from support import problems_of, refused

from fedstrata.core.documents import Document, Span
from fedstrata.core.errors import ConfigurationError, DataError
from fedstrata.core.settings.data import ColumnSettings, DatasetSettings
from fedstrata.data.readers import read

LABELLED, TAGGED = ColumnSettings(labels="label"), ColumnSettings(tokens="t", tags="g")


def rows(path: Path, columns: ColumnSettings = LABELLED, **settings: Any) -> list[Document]:
    return read(path, "datasets", columns=columns, dataset=DatasetSettings(**settings))


def test_csv_files_by_site_and_split(tmp_path: Path) -> None:
    for place, label in (("north/train", "003"), ("north/test", ""), ("south/train", "NA")):
        path = tmp_path / f"{place}.csv"
        path.parent.mkdir(exist_ok=True)
        path.write_text(f'label,text\n{label},"one ""two"",\nthree"\n')
    text = 'one "two",\nthree'
    assert rows(tmp_path) == [
        Document("north/test/test-1", text, site="north", metadata={"split": "test"}),
        Document("north/train/train-1", text, labels=("003",), site="north", metadata={"split": "train"}),
        Document("south/train/train-1", text, labels=("NA",), site="south", metadata={"split": "train"}),
    ]


def test_columns_of_a_file_without_a_header(tmp_path: Path) -> None:
    path = tmp_path / "pairs.tsv.gz"
    path.write_bytes(gzip.compress(b'7\tA "b\tc\tnorth\n'))
    columns = ColumnSettings(
        names=["number", "one", "two", "hospital"], text=["one", "two"], id="number", site="hospital"
    )
    assert rows(path, columns) == [Document("7", 'A "b\nc', site="north")]


def test_columns_of_codes_patients_and_parts(tmp_path: Path) -> None:
    path = tmp_path / "notes.csv"
    path.write_text("text,codes,person,part\na,I10;E11.9; ;I10,7,train\nb,,7,Dev\n")
    columns = ColumnSettings(labels="codes", separator=";", patient="person", split="part")
    assert rows(path, columns) == [
        Document("notes-1", "a", labels=("I10", "E11.9"), metadata={"patient": "7", "split": "train"}),
        Document("notes-2", "b", metadata={"patient": "7", "split": "validation"}),
    ]
    path.write_text("text,codes,person,part\na,I10,7,elsewhere\n")
    with refused(DataError, "unknown_name", at="notes.csv", values=["line 2", "'part'"]):
        rows(path, columns)
    with refused(ConfigurationError, "missing_column", at="data.columns.patient", values=["'person'"]):
        path.write_text("text,codes,part\na,I10,train\n")
        rows(path, columns)


@pytest.mark.parametrize("suffix", [".json", ".jsonl", ".jsonl.gz"])
def test_json_with_lists_numbers_and_gaps(tmp_path: Path, suffix: str) -> None:
    pytest.importorskip("datasets")
    records = [
        {"text": "a\nb\u2028", "label": ["x", " y", "x"], "id": 4},
        {"text": None, "label": None, "id": 5},
        {"text": "c", "label": [], "id": 6},
    ]
    content = json.dumps(records) if suffix == ".json" else "\n".join(map(json.dumps, records))
    path = tmp_path / f"notes{suffix}"
    path.write_bytes(gzip.compress(content.encode()) if suffix.endswith(".gz") else content.encode())
    assert rows(path, ColumnSettings(labels="label", id="id")) == [
        Document("4", "a\nb\u2028", labels=("x", "y")),
        Document("5", ""),
        Document("6", "c"),
    ]


@pytest.fixture
def classified():
    """A data set with class names: one class a row, several a row, and a tag a token."""
    datasets = pytest.importorskip("datasets")
    names = datasets.ClassLabel(names=["World", "Sports"])
    tags = datasets.ClassLabel(names=["O", "B-problem", "I-problem"])
    features = {
        "text": datasets.Value("string"),
        "label": names,
        "labels": datasets.List(names),
        "tokens": datasets.List(datasets.Value("string")),
        "ner_tags": datasets.List(tags),
    }
    columns = {
        "text": ["a", "b"],
        "label": [1, -1],
        "labels": [[0, 1], []],
        "tokens": [["chest", "pain", "today"], []],
        "ner_tags": [[1, 2, 0], []],
    }
    return datasets.Dataset.from_dict(columns, features=datasets.Features(features))


def test_class_numbers_become_their_names(tmp_path: Path, classified) -> None:
    classified.save_to_disk(tmp_path / "saved")
    classified.to_parquet(tmp_path / "notes.parquet")
    for path, name in ((tmp_path / "saved", "saved"), (tmp_path / "notes.parquet", "notes")):
        one = rows(path)
        assert [(item.id, item.labels) for item in one] == [(f"{name}-1", ("Sports",)), (f"{name}-2", ())]
        several = rows(path, ColumnSettings(labels="labels"))
        assert [item.labels for item in several] == [("World", "Sports"), ()]


@pytest.mark.parametrize(("labels", "without"), [("-1 0 1 -1", 2), ("0 1 1 0", 0), ("-1 -1 -1 -1", 0)])
def test_rows_that_minus_one_leaves_without_a_label_are_counted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, labels: str, without: int
) -> None:
    lines = [f"text {number},{label}" for number, label in enumerate(labels.split())]
    (tmp_path / "table.csv").write_text("\n".join(["text,label", *lines]))
    found = rows(tmp_path)
    assert sum(not document.labels for document in found) == labels.split().count("-1")
    assert [record.args for record in caplog.records] == ([("label", without, 4)] if without else [])


def test_a_zero_or_one_for_every_class_is_not_taken_for_numbers_of_classes(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    names = datasets.ClassLabel(names=["cough", "fever", "pain"])
    features = datasets.Features({"text": datasets.Value("string"), "label": datasets.List(names)})
    data = datasets.Dataset.from_dict({"text": ["a", "b"], "label": [[-1, -1], [0, 1, 1]]}, features=features)
    data.save_to_disk(tmp_path / "saved")
    with refused(DataError, "duplicate", values=["row 2", "'label'", "holds 1"]):
        rows(tmp_path / "saved")


def test_tokens_and_tags_become_spans(tmp_path: Path, classified) -> None:
    classified.save_to_disk(tmp_path / "saved")
    found = rows(tmp_path / "saved", ColumnSettings(tokens="tokens", tags="ner_tags"))
    assert found == [
        Document("saved-1", "chest pain today", (Span(0, 10, "problem"),)),
        Document("saved-2", ""),
    ]


def saved_splits(path: Path, classified: Any, *names: str) -> Path:
    import datasets

    datasets.DatasetDict(dict.fromkeys(names, classified)).save_to_disk(path)
    return path


def test_the_splits_of_a_data_set(tmp_path: Path, classified) -> None:
    path = saved_splits(tmp_path / "mnli", classified, "train", "validation_matched", "test")
    with refused(
        ConfigurationError, "unknown_name", at="data.dataset.splits", values=["validation_matched is"]
    ):
        rows(path)
    with refused(
        ConfigurationError,
        "not_found",
        at="data.dataset.splits",
        values=["split dev", "train, validation_matched"],
    ):
        rows(path, splits=["dev"])
    found = rows(path, splits={"train": "train", "validation_matched": "test"})
    assert [(item.id, item.metadata["split"]) for item in found] == [
        ("train/train-1", "train"),
        ("train/train-2", "train"),
        ("validation_matched/validation_matched-1", "test"),
        ("validation_matched/validation_matched-2", "test"),
    ]
    assert {item.metadata["split"] for item in rows(path, splits=["train", "test"])} == {"train", "test"}


def test_columns_that_are_not_there_are_all_named(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("body,class\nSECRET,1\n")
    columns = ColumnSettings(text=["title", "body"], labels="label", id="number")
    with pytest.raises(ConfigurationError) as raised:
        rows(tmp_path, columns)
    paths = [problem.path for problem in raised.value.problems]
    assert paths == ["data.columns.text.0", "data.columns.labels", "data.columns.id"]
    assert {code for _, code in problems_of(raised.value)} == {"missing_column"}
    assert "'label'" in str(raised.value)
    assert "body, class" in str(raised.value)
    assert "SECRET" not in str(raised.value)


def test_what_is_asked_of_a_saved_data_set_is_refused_for_files(tmp_path: Path) -> None:
    (tmp_path / "train.csv").write_text("text\na\n")
    with refused(ConfigurationError, "no_effect", at="data.dataset", values=[tmp_path]):
        rows(tmp_path, splits=["train"])


def test_a_first_row_that_is_no_header_is_not_quoted_and_one_alone_is_no_table(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("3,SECRET\n4,SECRET too\n")
    with refused(ConfigurationError, "missing_column", values=["data.columns.names"]) as raised:
        rows(tmp_path)
    assert "SECRET" not in str(raised.value)
    (tmp_path / "a.csv").write_text("text\n")
    with refused(DataError, "not_enough_data"):
        read(tmp_path, "datasets")


@pytest.mark.parametrize(
    ("record", "columns", "code", "values"),
    [
        ({"text": 3}, ColumnSettings(), "wrong_type", ["'text'", "int"]),
        ({"text": "SECRET", "label": 0.5}, LABELLED, "wrong_type", ["'label'", "float"]),
        ({"text": "a", "label": "SECRET" * 40}, LABELLED, "wrong_form", ["'label'", 240]),
        ({"text": "a", "id": "SECRET" * 40}, ColumnSettings(id="id"), "wrong_form", ["'id'", 240]),
        (
            {"text": "a", "site": "SECRET\nb"}, ColumnSettings(site="site"), "wrong_form",
            ["'site'", "2 lines"],
        ),
        ({"text": "a", "label": [0, 1, 0]}, LABELLED, "duplicate", ["'label'", "holds 0"]),
        ({"text": "a", "label": [True, True]}, LABELLED, "duplicate", ["'label'", "True"]),
        ({"text": "SECRET", "id": " "}, ColumnSettings(id="id"), "missing", ["'id'"]),
        ({"t": "SECRET", "g": ["O"]}, TAGGED, "wrong_type", ["'t'"]),
        ({"t": ["SECRET"], "g": ["O", "O"]}, TAGGED, "wrong_count", ["'g'", "2 tags"]),
        ({"t": ["SECRET"], "g": ["Q-x"]}, TAGGED, "wrong_form", ["'g'"]),
        ({"t": ["SECRET", "a"], "g": ["B-x", "I-y"]}, TAGGED, "conflict", ["'g'"]),
    ],
)  # fmt: skip
def test_rows_that_cannot_be_used_are_named_without_their_text(
    tmp_path: Path, record: dict[str, Any], columns: ColumnSettings, code: str, values: list[object]
) -> None:
    pytest.importorskip("datasets")
    (tmp_path / "a.jsonl").write_text(json.dumps(record))
    with refused(DataError, code, at="a.jsonl", values=["row 1", *values]) as raised:
        rows(tmp_path, columns)
    assert "SECRET" not in str(raised.value)


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("a.json", '{"text": "x"}\n{"text": "SECRET', "row 1"),
        ("a.jsonl", '{"text": SECRET}', "Invalid value. in row 0"),
        ("a.json", '{"SECRET": 1, "SECRET": 2}', "in row 0"),
        ("a.parquet", "SECRET", "file footer"),
        ("a.json", "", "StopIteration"),
        ("a.jsonl.gz", '{"text": "SECRET"}', "BadGzipFile"),
        ("a.json", '[{"text": "SECRET"}, 3]', "ArrowInvalid"),
    ],
)
def test_files_that_cannot_be_read(tmp_path: Path, capfd, name: str, content: str, says: str) -> None:
    pytest.importorskip("datasets")
    (tmp_path / name).write_text(content)
    with refused(DataError, "unreadable", at=name, values=[says]) as raised:
        rows(tmp_path)
    assert "SECRET" not in str(raised.value) + "".join(capfd.readouterr())


def test_paths_that_are_neither_files_nor_ids(tmp_path: Path) -> None:
    for path in (tmp_path / "absent", Path("absent.csv"), Path("a/b/c")):
        with refused(DataError, "not_found", at=path.name):
            rows(path)
    (tmp_path / "notes.xlsx").write_text("")
    with refused(DataError, "wrong_format", at="notes.xlsx", values=["*.csv"]):
        rows(tmp_path / "notes.xlsx")


SCRIPT = """
import sys
from pathlib import Path
from fedstrata.core.errors import ConfigurationError
from fedstrata.data.readers import read
try:
    print(len(read(Path(sys.argv[1]), "datasets")))
except ConfigurationError as error:
    print(error)
"""


def in_a_fresh_process(argument: Path | str, home: Path, prelude: str = "", **environment: str) -> str:
    command = [sys.executable, "-c", prelude + SCRIPT, str(argument)]
    variables = {"PATH": "", "PYTHONPATH": ":".join(sys.path), "HOME": str(home), **environment}
    done = subprocess.run(command, capture_output=True, text=True, env=variables, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


@pytest.mark.slow
def test_local_files_leave_no_copy_and_need_no_network(tmp_path: Path, classified) -> None:
    """Sockets are closed to the process; its home stays empty."""
    home, data, temporary = (tmp_path / name for name in ("home", "data", "temporary"))
    for folder in (home, data, temporary):
        folder.mkdir()
    classified.to_parquet(data / "notes.parquet")
    (data / "more.jsonl.gz").write_bytes(gzip.compress(b'{"text": "SECRET"}\n'))
    closed = "import socket\nsocket.socket.connect = None\n"
    assert in_a_fresh_process(data, home, closed, TMPDIR=str(temporary)).splitlines() == ["3"]
    assert not [path for path in home.rglob("*") if path.is_file()]
    assert not list(temporary.iterdir())


@pytest.mark.slow
def test_an_id_that_cannot_be_reached(tmp_path: Path) -> None:
    pytest.importorskip("datasets")
    said = in_a_fresh_process("acme/absent", tmp_path, HF_HUB_OFFLINE="1")
    for value in ("data.path: 'acme/absent'", "(ConnectionError: ", "[not_found]"):
        assert value in said


def test_without_the_library_the_message_says_what_to_install(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "a"}\n')
    missing = "import sys\nsys.modules['datasets'] = None\n"
    said = in_a_fresh_process(tmp_path, tmp_path, missing)
    for value in ("data.format: ", "pip install 'fedstrata[datasets]'", "[not_installed]"):
        assert value in said
    (tmp_path / "a.jsonl").rename(tmp_path / "a.csv")
    (tmp_path / "a.csv").write_text("text\na\n")
    assert in_a_fresh_process(tmp_path, tmp_path, missing) == "1\n"


def test_what_is_asked_of_the_hub(monkeypatch: pytest.MonkeyPatch, classified) -> None:
    """There is no hub to ask here: only what would be asked, and what becomes of the answer."""
    import datasets

    asked = []

    def load_dataset(*arguments: Any, **keywords: Any) -> Any:
        asked.append((arguments, keywords))
        return datasets.DatasetDict({"train": classified, "validation": classified})

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    found = rows(Path("acme/news"), config="small", revision="v1")
    assert asked == [(("acme/news",), {"name": "small", "revision": "v1"})]
    assert [(item.id, item.site, item.metadata["split"], item.labels) for item in found] == [
        ("train/train-1", "", "train", ("Sports",)),
        ("train/train-2", "", "train", ()),
        ("validation/validation-1", "", "validation", ("Sports",)),
        ("validation/validation-2", "", "validation", ()),
    ]


def test_rows_may_be_pairs_of_texts(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("premise,hypothesis,label\nA man.,A boy.,yes\nA man.,,no\n")
    columns = ColumnSettings(text="premise", text_pair="hypothesis", labels="label")
    documents = read(tmp_path / "a.csv", "datasets", columns=columns)
    assert [(item.texts, item.labels) for item in documents] == [
        (("A man.", "A boy."), ("yes",)),
        (("A man.", ""), ("no",)),
    ]
    with refused(ConfigurationError, "missing_column", at="data.columns.text_pair", values=["'second'"]):
        read(tmp_path / "a.csv", "datasets", columns=columns.model_copy(update={"text_pair": "second"}))
    with pytest.raises(ValidationError) as raised:
        ColumnSettings(tokens="a", tags="b", text_pair="c")
    (error,) = raised.value.errors()
    assert error["ctx"]["error"].code == "no_effect"
    assert "text_pair" in error["msg"]


KEYED = {
    "21": {"QUESTION": "Is it?", "context": {"CONTEXTS": ["Fever.", "Pain."]}, "final": "yes"},
    "22": {"QUESTION": "Was it?", "context": {"CONTEXTS": []}, "final": "no"},
}
NESTED = ColumnSettings(text=["QUESTION", "context.CONTEXTS"], labels="final")


def test_objects_by_their_ids_and_fields_within_columns(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(json.dumps(KEYED, indent=1))
    documents = read(tmp_path / "a.json", "datasets", columns=NESTED)
    assert documents == [
        Document("21", "Is it?\nFever.\nPain.", labels=("yes",)),
        Document("22", "Was it?\n", labels=("no",)),
    ]
    with refused(ConfigurationError, "missing_column", values=["'context.contexts'", "QUESTION, cont"]):
        read(tmp_path / "a.json", "datasets", columns=NESTED.model_copy(update={"text": "context.contexts"}))
    (tmp_path / "a.json").write_text('{"SECRET": {"text": "a"}, "SECRET": {"text": "b"}}')
    with refused(DataError, "duplicate", at="a.json") as raised:
        rows(tmp_path)
    assert "SECRET" not in str(raised.value)


def test_fields_within_columns_of_json_lines(tmp_path: Path) -> None:
    pytest.importorskip("datasets")
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(record) + "\n" for record in KEYED.values()))
    texts = [document.text for document in read(tmp_path / "a.jsonl", "datasets", columns=NESTED)]
    assert texts == ["Is it?\nFever.\nPain.", "Was it?\n"]
    numbers = json.dumps({"QUESTION": "SECRET", "context": {"CONTEXTS": [1]}, "final": "x"})
    (tmp_path / "a.jsonl").write_text(numbers)
    with refused(DataError, "wrong_type", at="a.jsonl", values=["'context.CONTEXTS'", "int"]) as raised:
        read(tmp_path / "a.jsonl", "datasets", columns=NESTED)
    assert "SECRET" not in str(raised.value)
