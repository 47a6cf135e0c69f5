"""Predictions as files: every offset is one of the input's own text, whatever that text holds.

The model is random and untrained, which finds a mention in every other word.
"""

from __future__ import annotations

import gzip
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from support import RunTiny, problems_of, refused
from transformers import pipeline

from fedstrata.core.documents import Document, Span
from fedstrata.core.errors import ConfigurationError, DataError
from fedstrata.data.readers import read
from fedstrata.data.writers import write
from fedstrata.metrics.spans import match_spans, scores_of
from fedstrata.results import predict as module
from fedstrata.results.predict import Outcome, check_output, open_inputs, predict_files
from fedstrata.results.result import Result, open_result
from fedstrata.tasks.ner import NamedEntityRecognition
from fedstrata.train.evaluate import answer

# Line ends and blanks of all kinds, a byte order mark, a combining accent, a character outside the basic
# plane, a sign that lower case makes longer, and the signs that formats give a meaning to.
AWKWARD = 'aB1. \n\r\t\v\x1c\x85\u00a0\u2028\ufeff\u0301\U0001f600İß#-|:;="/O'
TEXTS = st.one_of(
    st.text(alphabet=AWKWARD, max_size=60),
    st.text(max_size=40),
    st.lists(st.sampled_from(["chest ", "pain,", "\r\n", "5mg", " ", "\n"]), max_size=150).map("".join),
)


@pytest.fixture(scope="module")
def result(run_once: RunTiny) -> Result:
    return open_result(run_once("federation.rounds=1", "training.learning_rate=1e-9").folder)


def found(result: Result, text: str) -> list[Span]:
    """What the model finds, asked without any file."""
    (spans,) = answer(result.model, result.task, [Document("x", text)], result.settings.training)
    return list(spans)


def predict(result: Result, path: Path, out: Path, output: str = "brat", form: str = "text") -> Outcome:
    inputs = open_inputs(path, form, check_output(result.task, output))
    return predict_files(result, inputs, out, output, lambda count: None)


@contextmanager
def predicted(result: Result, content: bytes, output: str) -> Iterator[Path]:
    """The folder of predictions for one file."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "note.txt"
        file.write_bytes(content)
        predict(result, file, Path(folder) / "out", output)
        yield Path(folder) / "out"


@given(TEXTS, st.booleans())
@example("", False)
@example(" \r\n", True)
@example("\ufeffchest pain", True)
@example("A\r\nchest\r\npain\r\n\r\n", True)
def test_brat_gives_back_the_bytes_of_the_text_and_the_mentions(
    result: Result, text: str, marked: bool
) -> None:
    content = (b"\xef\xbb\xbf" if marked else b"") + text.encode()
    seen = content.decode().removeprefix("\ufeff")
    with predicted(result, content, "brat") as out:
        assert sorted(path.name for path in out.iterdir()) == ["note.ann", "note.txt"]
        assert (out / "note.txt").read_bytes() == content
        (document,) = read(out, "brat")
        assert document.text == seen
        assert list(document.spans) == found(result, seen)


@given(TEXTS)
@example("")
def test_json_lines_give_back_the_text_and_the_mentions(result: Result, text: str) -> None:
    seen = text.removeprefix("\ufeff")
    with predicted(result, text.encode(), "jsonl") as out:
        (document,) = read(out, "jsonl")
        assert (document.id, document.text) == ("note", seen)
        assert list(document.spans) == found(result, seen)


def solid(text: str) -> str:
    return "".join(text.split()).replace("\ufeff", "").casefold()


@pytest.mark.slow  # mentions in texts that are i2b2 before are fast
@given(TEXTS)
@example("chest\r\npain, 5mg\n")
def test_i2b2_gives_back_the_mentions_word_for_word(result: Result, text: str) -> None:
    seen = text.removeprefix("\ufeff")
    expected = {(span.label, solid(seen[span.start : span.end])) for span in found(result, seen)}
    with predicted(result, text.encode(), "i2b2") as out:
        (document,) = read(out, "i2b2")
        assert solid(document.text) == solid(seen)
        spans = {(span.label, solid(document.text[span.start : span.end])) for span in document.spans}
        assert spans == {(label, words) for label, words in expected if words}


@given(TEXTS)
@example("No chest pain ,\n5mg aspirin (daily).")
def test_i2b2_texts_keep_their_tokens_and_mentions_are_widened_to_them(result: Result, text: str) -> None:
    seen = text.removeprefix("\ufeff")
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "in").mkdir()
        (Path(folder) / "in" / "note.txt").write_bytes(text.encode())
        outcome = predict(result, Path(folder) / "in", Path(folder) / "out", "i2b2", "i2b2")
        assert (Path(folder) / "out" / "note.txt").read_bytes() == text.encode()
        (document,) = read(Path(folder) / "out", "i2b2")
    assert document.text == seen
    blank = " \t\r\f\v\n"
    whole = set()
    for span in found(result, seen):
        start, end = span.start, span.end
        while start and seen[start - 1] not in blank:
            start -= 1
        while end < len(seen) and seen[end] not in blank:
            end += 1
        if solid(seen[span.start : span.end]):
            start = end - len(seen[start:end].lstrip())  # white space other than those blanks is in the token
            whole.add(Span(start, end, span.label))
    assert set(document.spans) == whole
    assert outcome.annotations - outcome.left_out == len(whole)


def test_a_compressed_text_is_written_as_its_own_bytes(result: Result, tmp_path: Path) -> None:
    content = "\ufeffchest pain\r\n".encode()
    (tmp_path / "note.txt.gz").write_bytes(gzip.compress(content))
    predict(result, tmp_path / "note.txt.gz", tmp_path / "out")
    assert (tmp_path / "out" / "note.txt").read_bytes() == content


def test_a_folder_is_mirrored_whatever_its_layout(result: Result, tmp_path: Path) -> None:
    """A corpus could not look like this, with texts beside folders and a folder named like a split."""
    texts = {"one.txt": "chest pain", "a/two.txt": "", "a/test/three.v2.TXT": "fever\r\n", "a/four.txt": "\n"}
    for name, text in texts.items():
        (tmp_path / "in" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "in" / name).write_bytes(text.encode())
    for other in (".hidden.txt", "a/notes.md", "a/two.ann"):
        (tmp_path / "in" / other).write_text("not a text")
    outcome = predict(result, tmp_path / "in", tmp_path / "out")
    assert outcome.documents == 4
    out = tmp_path / "out"
    written = {str(path.relative_to(out)) for path in out.rglob("*") if path.is_file()}
    stems = ["one", "a/two", "a/test/three.v2", "a/four"]
    assert written == {f"{stem}{suffix}" for stem in stems for suffix in (".txt", ".ann")}
    assert (out / "a" / "two.ann").read_bytes() == b""
    assert (out / "a" / "test" / "three.v2.txt").read_bytes() == b"fever\r\n"
    predict(result, tmp_path / "in", tmp_path / "lines", "jsonl")
    assert [document.id for document in read(tmp_path / "lines", "jsonl")] == sorted(stems)


@pytest.mark.parametrize("form", ["brat", "i2b2", "conll", "jsonl"])
def test_every_input_format_to_every_output_format(result: Result, tmp_path: Path, form: str) -> None:
    corpus = [
        Document(f"{site}/{name}", f"{name} has chest pain,\nand 5mg.", (Span(8, 13, "problem"),), site=site)
        for site in ("north", "south")
        for name in ("n1", "n2")
    ]
    write(corpus, tmp_path / "in", form)
    documents = {document.id: document for document in read(tmp_path / "in", form)}
    for output in ("brat", "i2b2", "jsonl"):
        predict(result, tmp_path / "in", tmp_path / output, output, form)
        back = {document.id: document for document in read(tmp_path / output, output)}
        assert back.keys() == documents.keys()
        assert {document.site for document in back.values()} == {"north", "south"}
        for name, document in back.items():
            assert solid(document.text) == solid(documents[name].text)
            if output != "i2b2":
                assert document.text == documents[name].text
                assert list(document.spans) == found(result, document.text)


def test_documents_of_one_name_in_two_splits_stay_two(result: Result, tmp_path: Path) -> None:
    corpus = [Document("x", f"chest pain {part}", metadata={"split": part}) for part in ("train", "test")]
    write(corpus, tmp_path / "in", "brat")
    predict(result, tmp_path / "in", tmp_path / "out", "jsonl", "brat")
    back = [(item.id, item.text) for item in read(tmp_path / "out", "jsonl")]
    assert back == [(f"{part}/x", f"chest pain {part}") for part in ("test", "train")]


def test_scores_are_taken_under_the_names_the_model_has(result: Result, tmp_path: Path) -> None:
    text = "The patient has severe chest pain and takes aspirin 81 mg."
    gold = (Span(16, 33, "Sign_symptom"), Span(44, 51, "drug"), Span(52, 57, "Dosage"))
    write([Document("note", text, gold)], tmp_path / "in", "brat")
    types = {"Sign_symptom": "problem"}
    data = result.settings.data.model_copy(update={"types": types})
    settings = result.settings.model_copy(update={"data": data})
    renamed = Result(
        **{name: getattr(result, name) for name in result.__slots__ if name != "settings"}, settings=settings
    )
    outcome = predict(renamed, tmp_path / "in", tmp_path / "out", form="brat")
    known = [Span(16, 33, "problem"), Span(44, 51, "drug")]
    assert outcome.scores == scores_of(
        match_spans([known], [found(result, text)]), ["drug", "problem", "test", "treatment"]
    )
    assert outcome.unknown == {"Dosage"}
    (document,) = read(tmp_path / "out", "brat")
    assert list(document.spans) == found(result, text)  # nothing of the input's own annotations


def test_texts_alone_have_no_scores(result: Result, tmp_path: Path) -> None:
    write([Document("note", "chest pain", (Span(0, 5, "problem"),))], tmp_path / "in", "brat")
    assert predict(result, tmp_path / "in", tmp_path / "out").scores is None


def test_the_size_of_a_chunk_changes_nothing(
    result: Result, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "in").mkdir()
    for number in range(7):
        (tmp_path / "in" / f"{number}.txt").write_text(f"{number} chest pain, fever; 5mg aspirin. " * number)
    predict(result, tmp_path / "in", tmp_path / "one", "jsonl")
    advanced: list[int] = []
    monkeypatch.setattr(module, "CHUNK_DOCUMENTS", 3)
    monkeypatch.setattr(module, "CHUNK_CHARACTERS", 200)
    inputs = open_inputs(tmp_path / "in", "text", "jsonl")
    predict_files(result, inputs, tmp_path / "many", "jsonl", advanced.append)
    assert max(advanced) <= 3
    assert sum(advanced) == inputs.count == 7
    names = [tmp_path / folder / "predictions.jsonl" for folder in ("one", "many")]
    assert names[0].read_bytes() == names[1].read_bytes()


def test_every_bad_file_is_told_before_anything_is_written(result: Result, tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / "in" / name).mkdir(parents=True)
        (tmp_path / "in" / name / "bad.txt").write_bytes(b"na\xefve")
        (tmp_path / "in" / name / "good.txt").write_bytes(b"naive")
    (tmp_path / "in" / "a" / "good.TXT").write_bytes(b"naive")
    values = ["a/bad.txt", "byte 2", "'a/good'", "b/bad.txt"]
    with refused(ConfigurationError, "not_utf8", at="INPUT", values=values) as caught:
        predict(result, tmp_path / "in", tmp_path / "out")
    codes = ("not_utf8", "duplicate", "not_utf8")
    assert problems_of(caught.value) == [("INPUT", code) for code in codes]
    assert not (tmp_path / "out").exists()


def test_an_input_that_is_not_there_or_holds_nothing(result: Result, tmp_path: Path) -> None:
    with refused(DataError, "not_found", at="absent"):
        predict(result, tmp_path / "absent", tmp_path / "out")
    (tmp_path / "empty").mkdir()
    with refused(DataError, "not_enough_data", at="empty"):
        predict(result, tmp_path / "empty", tmp_path / "out")
    with refused(ConfigurationError, "unknown_name", at="--input-format", values=["text, i2b2", "'word'"]):
        predict(result, tmp_path / "empty", tmp_path / "out", form="word")


def test_a_folder_in_use_is_left_alone(result: Result, tmp_path: Path) -> None:
    (tmp_path / "note.txt").write_text("chest pain")
    with refused(ConfigurationError, "exists"):
        predict(result, tmp_path / "note.txt", tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["note.txt"]


def test_what_stops_half_way_leaves_whole_files_only(
    result: Result, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "in").mkdir()
    for number in range(4):
        (tmp_path / "in" / f"{number}.txt").write_text("chest pain")
    monkeypatch.setattr(module, "CHUNK_DOCUMENTS", 2)

    def stop(count: int) -> None:
        raise KeyboardInterrupt

    for output, expected in (("brat", {"0.txt", "0.ann", "1.txt", "1.ann"}), ("jsonl", set())):
        inputs = open_inputs(tmp_path / "in", "text", output)
        with pytest.raises(KeyboardInterrupt):
            predict_files(result, inputs, tmp_path / output, output, stop)
        assert {path.name for path in (tmp_path / output).iterdir()} == expected


def test_formats_that_cannot_spell_a_type_are_refused_before_anything(result: Result) -> None:
    assert isinstance(result.task, NamedEntityRecognition)
    alike = result.task.of_types(["lab value", "lab_value"])
    with refused(ConfigurationError, "duplicate", at="--format", values=["'lab_value'"]):
        check_output(alike, "brat")
    assert check_output(alike, "jsonl") == "jsonl"
    with refused(ConfigurationError, "wrong_form", at="--format", values=["called"]):
        check_output(result.task.of_types(['so "called"']), "i2b2")
    assert check_output(alike, None) == "brat"


@pytest.mark.parametrize(
    "text", ["The patient has chest pain.", "5mg aspirin daily; no fever, no cough", "BP 120/80"]
)
def test_the_pipeline_of_transformers_finds_the_same_but_for_whole_words(result: Result, text: str) -> None:
    tagger = pipeline(
        "token-classification", model=str(result.folder / "model"), aggregation_strategy="simple"
    )
    groups = tagger(text)
    assert groups
    spans = []
    for group in groups:  # its offsets may include the blank before a word
        words = text[group["start"] : group["end"]]
        start = group["start"] + len(words) - len(words.lstrip())
        spans.append((start, start + len(words.strip()), group["entity_group"]))
    pieces = NamedEntityRecognition(whole_words=False).of_types(result.task.known_types)
    (own,) = answer(result.model, pieces, [Document("x", text)], result.settings.training)
    assert spans == [(span.start, span.end, span.label) for span in own]


def test_real_notes_are_read_back_with_their_mentions(
    result: Result, tmp_path: Path, data_root: Path
) -> None:
    corpus = sorted((data_root / "maccrobat2020" / "brat").glob("*.txt"))[:12]
    (tmp_path / "in").mkdir()
    for path in corpus:
        shutil.copy(path, tmp_path / "in")
    outcome = predict(result, tmp_path / "in", tmp_path / "out")
    documents = read(tmp_path / "out", "brat")
    assert [document.id for document in documents] == [path.stem for path in corpus]
    for path, document in zip(corpus, documents, strict=True):
        assert (tmp_path / "out" / path.name).read_bytes() == path.read_bytes()
        assert list(document.spans) == found(result, document.text)
    assert outcome.annotations == sum(len(document.spans) for document in documents) > 1000
