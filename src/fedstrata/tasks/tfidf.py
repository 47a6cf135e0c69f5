"""Word counts and a linear classifier: the floor that every trained document classifier must beat.

TF-IDF of words and word pairs, and one logistic regression a label. It sees all training documents at one
place and the whole text of each; of a pair, the words of both texts together.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import numpy as np
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.multiclass import OneVsRestClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MultiLabelBinarizer

from fedstrata.core.documents import Document
from fedstrata.tasks.classify import DocumentClassification


def tfidf_baseline(
    task: DocumentClassification, train: Sequence[Document], test: Sequence[Document]
) -> dict[str, float]:
    """Trains the baseline and scores it as the task scores a model.

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
    indicators = MultiLabelBinarizer(classes=task.labels).fit_transform([doc.labels for doc in train])
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Label .* is present in")  # in all training documents, or none
        classifier.fit(["\n".join(document.texts) for document in train], indicators)
    probabilities = classifier.predict_proba(["\n".join(document.texts) for document in test])
    return task.score(test, task.answers(np.asarray(probabilities, dtype=np.float64)))
