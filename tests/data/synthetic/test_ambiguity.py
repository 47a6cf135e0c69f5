"""The corpus cannot be solved by looking words up, and can be by a model that reads from left to right."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Sequence

import pytest
from sklearn.feature_extraction import FeatureHasher
from sklearn.linear_model import SGDClassifier

from fedstrata.core.documents import MENTION_TYPES, Document
from fedstrata.data.synthetic import generate

WORD = re.compile(r"\w+|[^\w\s]")

Mention = tuple[int, int, str]


def words(document: Document, start: int, end: int) -> tuple[str, ...]:
    return tuple(WORD.findall(document.text[start:end].lower()))


def mentions(document: Document) -> set[Mention]:
    return {(span.start, span.end, span.label) for span in document.spans if span.label in MENTION_TYPES}


class LookUpTagger:
    """Tags the longest wording seen in training with the label it mostly had there."""

    def __init__(self, training: Sequence[Document]) -> None:
        seen: dict[tuple[str, ...], Counter[str]] = defaultdict(Counter)
        for document in training:
            for start, end, label in mentions(document):
                seen[words(document, start, end)][label] += 1
        self.labels = {wording: counts.most_common(1)[0][0] for wording, counts in seen.items()}
        self.longest = max(map(len, self.labels))

    def tag(self, document: Document) -> set[Mention]:
        tokens = [(match[0].lower(), match.start(), match.end()) for match in WORD.finditer(document.text)]
        tagged, at = set(), 0
        while at < len(tokens):
            for length in range(min(self.longest, len(tokens) - at), 0, -1):
                label = self.labels.get(tuple(token for token, _, _ in tokens[at : at + length]))
                if label:
                    tagged.add((tokens[at][1], tokens[at + length - 1][2], label))
                    at += length - 1
                    break
            at += 1
        return tagged


def split(documents: Sequence[Document]) -> tuple[list[Document], list[Document]]:
    """70 % and 30 %, of every site."""
    train = [document for index, document in enumerate(documents) if index % 10 < 7]
    return train, [document for index, document in enumerate(documents) if index % 10 >= 7]


class LeftContextTagger:
    """A linear model of BIO tags from a word, what stands to its left and the tag before."""

    def __init__(self, training: Sequence[Document]) -> None:
        self.hasher = FeatureHasher(2**20, input_type="string", alternate_sign=False)
        self.model = SGDClassifier(
            loss="hinge", alpha=1e-6, average=True, max_iter=8, tol=None, random_state=0
        )
        features, tags = [], []
        for document in training:
            known = bio_tags(document)
            for token, before in zip(left_features(document), ["O", *known], strict=False):
                features.append([*token, *tag_features(before, token[0])])
            tags += known
        self.model.fit(self.hasher.transform(features), tags)

    def tag(self, document: Document) -> set[Mention]:
        tokens = list(WORD.finditer(document.text))
        tags = ["O"]
        for token in left_features(document):
            tags.append(self.best([*token, *tag_features(tags[-1], token[0])], tags[-1]))
        found: set[Mention] = set()
        for index, tag in enumerate(tags[1:]):
            if tag[0] == "B":
                last = index
                while tags[1:][last + 1 : last + 2] == [f"I-{tag[2:]}"]:
                    last += 1
                found.add((tokens[index].start(), tokens[last].end(), tag[2:]))
        return found

    def best(self, features: list[str], before: str) -> str:
        """Returns the likeliest tag that may follow the one before."""
        row = self.hasher.transform([features])
        scores = self.model.coef_[:, row.indices] @ row.data + self.model.intercept_
        ranked = [self.model.classes_[index] for index in scores.argsort()[::-1]]
        return next(tag for tag in ranked if tag[0] != "I" or before[2:] == tag[2:])


def tag_features(before: str, word: str) -> list[str]:
    return [f"tag {before}", f"tag {before} {word}"]


def left_features(document: Document) -> list[list[str]]:
    features, heading, before, sentence = [], "", ["^"] * 5, []
    for match in WORD.finditer(document.text):
        line = document.text[document.text.rfind("\n", 0, match.start()) + 1 : match.start()]
        if not line and before[-1] in {":", "-", "]", ">", "*", "."}:
            heading = "".join(before[-3:])
        word = match[0].lower()
        context = [f"{index} {other}" for index, other in enumerate(reversed(before))]
        features.append(
            [
                word,
                word[-3:],
                f"shape {match[0].isdigit()} {match[0].isupper()}",
                *context,
                *(f"{item} {word}" for item in context[:3]),
                *(" ".join(before[-length:]) for length in (2, 3, 4)),
                f"heading {heading}",
                f"heading {heading} {word}",
                *(f"sentence {other}" for other in sentence[-10:]),
                *(f"sentence {other} {word}" for other in sentence[-6:]),
                f"first {not line.strip('-*#0123456789.) ')}",
            ]
        )
        before = [*before[1:], word]
        sentence = [] if word in {".", ":"} else [*sentence, word]
    return features


def bio_tags(document: Document) -> list[str]:
    inside = {}
    for start, end, label in mentions(document):
        for match in WORD.finditer(document.text, start, end):
            inside[match.start()] = f"{'B' if match.start() == start else 'I'}-{label}"
    return [inside.get(match.start(), "O") for match in WORD.finditer(document.text)]


def f1(tagger: LookUpTagger | LeftContextTagger, test: Sequence[Document]) -> float:
    """Strict micro F1: the same characters and the same type."""
    right = total = 0
    for document in test:
        gold, tagged = mentions(document), tagger.tag(document)
        right, total = right + len(gold & tagged), total + len(gold) + len(tagged)
    return 2 * right / total


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (1, 2))])
def test_a_dictionary_of_training_mentions_is_far_from_enough(seed: int) -> None:
    train, test = split(generate(seed=seed, sites=4, notes=200))
    tagger = LookUpTagger(train)
    assert 0.45 <= f1(tagger, test) <= 0.70
    surfaces = [words(document, start, end) for document in test for start, end, _ in mentions(document)]
    unseen = sum(surface not in tagger.labels for surface in surfaces) / len(surfaces)
    assert 0.30 <= unseen <= 0.48


@pytest.mark.slow
def test_what_stands_to_the_left_tells_more_than_the_wording() -> None:
    train, test = split(generate(seed=0, sites=4, notes=200))
    score = f1(LeftContextTagger(train), test)
    assert score >= 0.80
    assert score >= f1(LookUpTagger(train), test) + 0.15


def test_one_wording_has_several_labels_and_none() -> None:
    corpus = generate(seed=0, sites=4, notes=160)
    labels: dict[tuple[str, ...], set[str]] = defaultdict(set)
    for document in corpus:
        for start, end, label in mentions(document):
            labels[words(document, start, end)].add(label)
    assert {"test", "drug"} <= labels["potassium",]
    assert sum({"test", "drug"} <= found for found in labels.values()) >= 5
    assert sum({"test", "treatment"} <= found for found in labels.values()) >= 5
    tagger = LookUpTagger(corpus)
    passed_over = {
        words(document, start, end)
        for document in corpus
        for start, end, _ in tagger.tag(document)
        if not any(span.start < end and start < span.end for span in document.spans)
    }
    assert len(passed_over) >= 100
