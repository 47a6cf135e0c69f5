"""CoNLL-U: texts, tokens, documents and genres."""

from __future__ import annotations

import gzip
from pathlib import Path

import fedstrata as fs
from fedstrata.core.documents import Document

TOKENS = {"conllu": {"text": "tokens"}}


def word(place: str, form: str) -> str:
    return "\t".join([place, form, *"_" * 8])


SAMPLE = "\n".join(
    [
        *("# newdoc id = weblog-a", "# sent_id = weblog-a-0001", "# newpar id = weblog-a-p1"),
        "# text = I don't know.",
        *(word(*own.split()) for own in ("1 I", "2-3 don't", "2 do", "3 n't", "4 know", "4.1 it", "5 .")),
        *("", "# sent_id = weblog-a-0002", "# text = #1", word("1", "#1")),
        *("", "# newdoc id = email-b", "# text = Yes", word("1", "Yes"), "", ""),
    ]
)


def documents(folder: Path, text: str = SAMPLE, name: str = "x.conllu", **settings) -> list[Document]:
    (folder / name).write_text(text)
    return fs.read(folder / name, "conllu", **settings)


def test_a_text_is_that_of_its_sentences_and_tokens_are_surface_tokens(tmp_path: Path) -> None:
    assert documents(tmp_path) == [
        Document("weblog-a", "I don't know.\n#1", labels=("weblog",), site="weblog"),
        Document("email-b", "Yes", labels=("email",), site="email"),
    ]
    (tmp_path / "north").mkdir()  # a folder says the site, and the genre stays the label
    (tmp_path / "x.conllu").rename(tmp_path / "north" / "x.conllu")
    found = fs.read(tmp_path, "conllu", **TOKENS)
    assert [(item.id, item.text, item.site, item.labels) for item in found] == [
        ("north/weblog-a", "I don't know .\n#1", "north", ("weblog",)),
        ("north/email-b", "Yes", "north", ("email",)),
    ]


def test_tokens_need_no_text_and_a_file_needs_no_document(tmp_path: Path) -> None:
    text = "\n".join([word("1", "Oui"), word("2", "!"), "", "# a comment alone", ""])
    assert documents(tmp_path, text, **TOKENS) == [Document("x-1", "Oui !")]


def test_a_paragraph_may_be_a_document_of_its_document_s_genre(tmp_path: Path) -> None:
    text = "\n".join(
        [
            "# newdoc id = weblog-a",
            "# newpar id = weblog-a-p1",
            *(word("1", "One"), "", word("1", "More"), ""),
            "# newpar id = weblog-a-p2",
            *(word("1", "Two"), "", "# newdoc id = email-b", word("1", "Three"), ""),
        ]
    )
    found = documents(tmp_path, text, conllu={"documents": "paragraphs", "text": "tokens"})
    assert [(each.id, each.text, each.labels) for each in found] == [
        ("weblog-a-p1", "One\nMore", ("weblog",)),
        ("weblog-a-p2", "Two", ("weblog",)),
        ("email-b", "Three", ("email",)),
    ]


def test_splits_are_told_by_the_names_that_treebanks_have(tmp_path: Path) -> None:
    for part in ("train", "dev", "test"):
        content = SAMPLE.replace("id = weblog-a", f"id = weblog-{part}").replace("email-b", f"b{part}")
        (tmp_path / f"en_ewt-ud-{part}.conllu.gz").write_bytes(gzip.compress(content.encode()))
    (tmp_path / "README.txt").write_text("no treebank")
    found = {item.id: (item.site, item.metadata["split"]) for item in fs.read(tmp_path, "conllu")}
    assert found["weblog-train"] == ("weblog", "train")
    assert found["weblog-dev"] == ("weblog", "validation")
    assert found["en_ewt-ud-test/btest"] == ("", "test")


def test_the_english_web_treebank(data_root: Path) -> None:
    folder = data_root / "ud_english_ewt"
    found = fs.read(folder / "en_ewt-ud-dev.conllu.gz", "conllu", **TOKENS)
    assert {item.site for item in found} == {"answers", "email", "newsgroup", "reviews", "weblog"}
    assert sum(len(item.text.split("\n")) for item in found) == 2001
    originals = fs.read(folder / "en_ewt-ud-dev.conllu.gz", "conllu")
    assert originals[0].text.startswith("From the AP comes this story :\nPresident Bush on Tuesday")
    for one, other in zip(found, originals, strict=True):
        assert "".join(one.text.split()) == "".join(other.text.split())
