"""Makes the workload: AG News articles of unequal clients, a tokenizer, a small BERT, who trains when.

The articles of AG News' test file: a thousand to test on, the others divided among the clients, label by
label, by shares that a Dirichlet distribution of concentration 1 draws. fedstrata reads them as text, by
`corpus/`; the other systems get the same articles encoded, which costs them nothing while they are measured.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from tokenizers import BertWordPieceTokenizer
from transformers import BertConfig, BertForSequenceClassification, BertTokenizerFast

from fedstrata.core.seeding import Seed
from fedstrata.engine.sampling import sample

CLIENTS, SAMPLED = 100, 0.1
TESTED, LONGEST, VOCABULARY = 1000, 64, 6000
LABELS = ("business", "science", "sports", "world")  # in the order of names, as fedstrata numbers them
COLUMN = {"1": "world", "2": "sports", "3": "business", "4": "science"}
Article = tuple[str, str]
"""Text and label."""


def read(file: Path) -> list[Article]:
    """Returns AG News' articles: title and description."""
    with file.open(encoding="utf-8", newline="") as lines:
        rows = list(csv.reader(lines))
    return [
        (f"{title.strip()} {text.strip()}".replace("\\", " "), COLUMN[label]) for label, title, text in rows
    ]


def divided(articles: Sequence[Article], rng: np.random.Generator) -> list[list[Article]]:
    """Returns the articles of each client; draws again where one would have none."""
    while True:
        clients: list[list[Article]] = [[] for _ in range(CLIENTS)]
        for label in LABELS:
            own = [article for article in articles if article[1] == label]
            ends = np.cumsum(rng.dirichlet(np.ones(CLIENTS)))
            places = np.searchsorted(ends, (np.arange(len(own)) + 0.5) / len(own)).clip(max=CLIENTS - 1)
            for article, client in zip(own, places, strict=True):
                clients[client].append(article)
        if all(clients):
            return clients


def write_corpus(folder: Path, clients: Sequence[Sequence[Article]], test: Sequence[Article]) -> None:
    """Writes a folder a client, as fedstrata reads them; each has its share of the test articles."""
    for number, own in enumerate(clients):
        site = folder / f"client-{number:04d}"
        site.mkdir(parents=True)
        for part, articles in (("train", own), ("test", test[number::CLIENTS])):
            lines = (
                json.dumps({"id": f"{part}-{number}-{index}", "text": text, "labels": [label]})
                for index, (text, label) in enumerate(articles)
            )
            (site / f"{part}.jsonl").write_text("\n".join(lines) + "\n", "utf-8")


def new_model(folder: Path, texts: Sequence[str]) -> BertTokenizerFast:
    """Saves a BERT of 4 million parameters at random values, and its tokenizer, which is returned."""
    folder.mkdir()
    pieces = BertWordPieceTokenizer(lowercase=True)
    pieces.train_from_iterator(texts, vocab_size=VOCABULARY, show_progress=False)
    pieces.save_model(str(folder))
    BertTokenizerFast(str(folder / "vocab.txt"), model_max_length=2 * LONGEST).save_pretrained(folder)
    tokenizer = BertTokenizerFast.from_pretrained(folder)
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=len(tokenizer),
        hidden_size=256,
        num_hidden_layers=3,
        num_attention_heads=4,
        intermediate_size=1024,
        max_position_embeddings=2 * LONGEST,
        id2label=dict(enumerate(LABELS)),
        label2id={label: number for number, label in enumerate(LABELS)},
    )
    BertForSequenceClassification(config).save_pretrained(folder)
    return tokenizer


def prepare(file: Path, folder: Path, rounds: int, articles: int | None = None) -> None:
    """Writes the workload.

    Args:
        file: AG News' `test.csv`.
        folder: Where to; exists.
        rounds: For how many rounds clients are drawn.
        articles: How many articles to take, for a trial; all if none.
    """
    rng = np.random.default_rng(0)
    everything = read(file)
    chosen = [everything[index] for index in rng.permutation(len(everything))[:articles]]
    tested = min(TESTED, len(chosen) // 4)
    test, clients = chosen[:tested], divided(chosen[tested:], rng)
    write_corpus(folder / "corpus", clients, test)
    tokenizer = new_model(folder / "model", [text for own in clients for text, _ in own])

    def encoded(own: Sequence[Article]) -> list[tuple[torch.Tensor, torch.Tensor]]:
        tokens = tokenizer([text for text, _ in own], truncation=True, max_length=LONGEST)["input_ids"]
        numbers = (torch.tensor(LABELS.index(label)) for _, label in own)
        return [
            (torch.tensor(each, dtype=torch.int32), number)
            for each, number in zip(tokens, numbers, strict=True)
        ]

    torch.save({"clients": [encoded(own) for own in clients], "test": encoded(test)}, folder / "articles.pt")
    drawn = [
        sample(range(CLIENTS), SAMPLED, Seed(0).child("round", number).child("sample"))
        for number in range(1, rounds + 1)
    ]
    (folder / "schedule.json").write_text(json.dumps([[int(each) for each in own] for own in drawn]), "utf-8")
