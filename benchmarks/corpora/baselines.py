"""What does a configuration's corpus give away without a language model?

    python benchmarks/corpora/baselines.py benchmarks/layer_skipping/table_2_ner_maccrobat.yaml --seeds 0,1,2

Scores, on the test split of each seed, what every trained model must beat: for named entity recognition a
look-up table of the training mentions, for document classification TF-IDF with logistic regression, for
relations the nearest mention that a mention may modify by its type. All see
all clients' training documents at one place. Where every document has one label there is also
`own_majority.accuracy`, of always answering the commonest label of a client's own training documents: the
mean over clients, each on its own test documents, and `own_majority.validation_accuracy` on its validation
documents, as `mean_client` counts personal models. Takes what `fedstrata compare` takes, and reads the data
of its first row. Last line: one JSON object, of each score its mean, smallest and largest.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from nearest import NearestLinker
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.multiclass import OneVsRestClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MultiLabelBinarizer

from fedstrata.core.documents import Document
from fedstrata.core.errors import FedstrataError
from fedstrata.core.settings.source import Source
from fedstrata.core.settings.sweep import read_sweep, with_value
from fedstrata.data.divide import divide
from fedstrata.data.split import Split
from fedstrata.engine.check import check_settings
from fedstrata.tasks.classify import DocumentClassification
from fedstrata.tasks.floors import MAJORITY
from fedstrata.tasks.lookup import LookupTagger
from fedstrata.tasks.relations import RelationClassification


def scores(source: Source) -> dict[str, float]:
    """Trains the baseline of the configuration's task and scores it as the task scores a model."""
    checked = check_settings(source)
    checked.require_sound()
    clients = divide(checked.settings, checked.task).clients
    task = checked.task.fitted(clients)
    train, test = (
        [document for own in clients.values() for document in getattr(own, part)]
        for part in ("train", "test")
    )
    if isinstance(task, DocumentClassification):
        return tfidf_baseline(task, train, test) | own_majority(task, clients)
    if isinstance(task, RelationClassification):
        linker = NearestLinker.fit(train, task.most_words)
        return task.score(test, [linker.predict(document) for document in test])
    tagger = LookupTagger.fit(train)
    return task.score(test, [tagger.predict(document) for document in test])


def tfidf_baseline(
    task: DocumentClassification, train: Sequence[Document], test: Sequence[Document]
) -> dict[str, float]:
    """Trains TF-IDF of words and word pairs with one logistic regression a label, and scores it as a model.

    Of a pair of texts it reads the words of both together.

    Labels are balanced in the loss (`class_weight="balanced"`), without which rare ones are never given at a
    threshold of one half.

    Args:
        task: The labels, and the threshold above which one is given.
        train: The training documents.
        test: The documents to score.

    Returns:
        The scores of `task.score`.
    """
    classifier = make_pipeline(
        TfidfVectorizer(sublinear_tf=True, ngram_range=(1, 2)),
        OneVsRestClassifier(LogisticRegression(class_weight="balanced", max_iter=1000)),
    )
    indicators = MultiLabelBinarizer(classes=task.classes).fit_transform([doc.labels for doc in train])
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Label .* is present in")  # in all training documents, or none
        classifier.fit(["\n".join(document.texts) for document in train], indicators)
    probabilities = classifier.predict_proba(["\n".join(document.texts) for document in test])
    return task.score(test, task.answers(np.asarray(probabilities, dtype=np.float64)))


def own_majority(task: DocumentClassification, clients: Mapping[str, Split]) -> dict[str, float]:
    """Scores what each client would have from its own commonest training label; the first of equals."""
    if task.problem_type != "single_label":
        return {}
    found: dict[str, list[float]] = {"accuracy": [], "validation_accuracy": []}
    for own in clients.values():
        for name, documents in zip(found, (own.test, own.validation), strict=True):
            if documents and (answers := task.floors(own.train, documents, None).get(MAJORITY)):
                found[name].append(task.score(documents, answers)["accuracy"])
    return {f"own_majority.{name}": statistics.mean(each) for name, each in found.items() if each}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("configuration", type=Path)
    parser.add_argument("override", nargs="*", help="settings as `key.path=value`")
    parser.add_argument("--seeds", default="0,1,2")
    options = parser.parse_args()
    row = read_sweep([options.configuration], options.override).rows[0]
    by_seed = []
    for seed in options.seeds.split(","):
        seeded, _ = with_value(row, "seed", int(seed), "--seeds")
        by_seed.append(scores(seeded.source))
        print(f"seed {seed}: {json.dumps({name: round(value, 4) for name, value in by_seed[-1].items()})}")
    values = {name: [one[name] for one in by_seed] for name in by_seed[0]}
    spread = {
        name: {"mean": statistics.mean(each), "min": min(each), "max": max(each)}
        for name, each in values.items()
    }
    print(json.dumps(spread))


if __name__ == "__main__":
    try:
        main()
    except FedstrataError as error:
        sys.exit(str(error))
