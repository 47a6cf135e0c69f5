from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support import problems_of, refused
from torch.nn import functional as F

from fedstrata.core.documents import Document
from fedstrata.core.errors import ConfigurationError
from fedstrata.data.split import Split
from fedstrata.tasks.classify import DocumentClassification, LabelAnswer, pool
from fedstrata.tasks.ner import NamedEntityRecognition

LABELS = ("401.9", "428.0", "584.9")
NOTES = [
    Document("a", "severe chest pain, given aspirin 5mg " * 6, labels=("428.0", "401.9")),
    Document("b", "CT of the chest; no fever."),
    Document("c", "denies fever " * 7, labels=("584.9",)),
    Document("d", "", labels=("401.9",)),
]
ONE_EACH = [Document(f"s{n}", f"note {n} of pain " * (n + 1), labels=(LABELS[n % 3],)) for n in range(5)]


def task_of(kind: str = "multi_label", **rest: Any) -> DocumentClassification:
    settings = {"max_length": 16, "stride": 4, **rest}
    return DocumentClassification(problem_type=kind, **settings).of_labels(LABELS)


@pytest.fixture(params=["llama", "bert"])
def classifier(request: pytest.FixtureRequest, tokenizer: Any, tiny_model: Any) -> Any:
    """A tiny random classifier with three labels, in evaluation mode."""
    module = tiny_model(request.param, "sequence-classification", config={"vocab_size": 400}).module
    module.config.pad_token_id = tokenizer.pad_token_id
    return module.requires_grad_(True).eval()


def naive_logits(task: DocumentClassification, module: Any, example: Any) -> torch.Tensor:
    """Runs a document's windows one at a time, without padding, and pools in a loop."""
    rows = [module(torch.from_numpy(ids.astype(np.int64))[None]).logits[0] for ids in example.windows]
    if task.pooling == "max":
        return torch.stack([torch.stack([row[label] for row in rows]).max() for label in range(3)])
    return sum(rows) / len(rows)


@pytest.mark.parametrize("pooling", ["mean", "max"])
@pytest.mark.parametrize("kind", ["single_label", "multi_label"])
def test_predictions_pool_the_windows_of_each_document(
    tokenizer: Any, classifier: Any, kind: str, pooling: str
) -> None:
    task, module = task_of(kind, pooling=pooling), classifier
    documents = NOTES if kind == "multi_label" else ONE_EACH
    examples = task.encode(documents, tokenizer)
    assert max(len(example.windows) for example in examples) > 2
    for example, found in zip(examples, task.predict(module, task.collate(examples)), strict=True):
        expected = naive_logits(task, module, example).detach().numpy()
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def test_prediction_runs_no_more_windows_at_a_time_than_documents(tokenizer: Any, classifier: Any) -> None:
    task, module, sizes = task_of(), classifier, []
    module.register_forward_pre_hook(
        lambda _, __, kwargs: sizes.append(len(kwargs["input_ids"])), with_kwargs=True
    )
    batch = task.collate(task.encode(NOTES, tokenizer))
    task.predict(module, batch)
    assert max(sizes) == len(NOTES)
    assert sum(sizes) == len(batch["input_ids"])


@pytest.mark.parametrize("pooling", ["mean", "max"])
def test_the_multi_label_loss_and_gradient_are_those_of_a_loop(
    tokenizer: Any, classifier: Any, pooling: str
) -> None:
    task, module = task_of(pooling=pooling, positive_weight=3.0), classifier
    examples = task.encode(NOTES, tokenizer)
    loss, terms = task.loss(module, task.collate(examples))
    loss.backward()
    found = {
        name: weight.grad.clone() for name, weight in module.named_parameters() if weight.grad is not None
    }
    module.zero_grad()
    expected = torch.zeros(())
    for note, example in zip(NOTES, examples, strict=True):
        for label, logit in zip(LABELS, naive_logits(task, module, example), strict=True):
            has = label in note.labels
            expected = expected - (3.0 * F.logsigmoid(logit) if has else F.logsigmoid(-logit))
    expected.backward()
    assert loss.item() == pytest.approx(expected.item(), rel=1e-5)
    assert int(terms) == len(NOTES) * len(LABELS)
    for name, weight in module.named_parameters():
        if weight.grad is not None:
            torch.testing.assert_close(found[name], weight.grad, rtol=1e-3, atol=1e-5)


def test_the_single_label_loss_is_the_cross_entropy_of_documents_that_have_a_label(
    tokenizer: Any, classifier: Any
) -> None:
    task, module = task_of("single_label"), classifier
    examples = task.encode([*ONE_EACH, Document("none", "no label")], tokenizer)
    loss, terms = task.loss(module, task.collate(examples))
    expected = 0.0
    for note, example in zip(ONE_EACH, examples[:-1], strict=True):
        expected -= float(
            naive_logits(task, module, example).log_softmax(-1).detach()[LABELS.index(note.labels[0])]
        )
    assert loss.item() == pytest.approx(expected, rel=1e-5)
    assert int(terms) == len(ONE_EACH)


@given(sizes=st.lists(st.integers(1, 4), min_size=1, max_size=5), seed=st.integers(0, 999))
@pytest.mark.parametrize("pooling", ["mean", "max"])
def test_pooling_and_its_gradient_are_those_of_a_loop(pooling: str, sizes: list[int], seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(sum(sizes), 3, generator=generator, dtype=torch.float64, requires_grad=True)
    weights = torch.randn(len(sizes), 3, generator=generator, dtype=torch.float64)
    document = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes))
    pooled = pool(logits, document, len(sizes), pooling)
    parts = logits.split(sizes)
    expected = torch.stack([part.mean(0) if pooling == "mean" else part.max(0).values for part in parts])
    torch.testing.assert_close(pooled, expected)
    (found,) = torch.autograd.grad((pooled * weights).sum(), logits)
    (wanted,) = torch.autograd.grad((expected * weights).sum(), logits)
    torch.testing.assert_close(found, wanted)


def test_the_rows_of_a_batch_are_the_windows_of_its_examples_in_order(tokenizer: Any) -> None:
    task = task_of()
    examples = [task.encode(NOTES, tokenizer)[index] for index in (2, 3, 0)]
    batch = task.collate(examples)
    rows = [ids for example in examples for ids in example.windows]
    assert batch["document"].tolist() == [n for n, own in enumerate(examples) for _ in own.windows]
    for row, (ids, mask) in zip(
        rows, zip(batch["input_ids"], batch["attention_mask"], strict=True), strict=True
    ):
        assert ids[: len(row)].tolist() == row.tolist()
        assert mask.tolist() == [1] * len(row) + [0] * (len(mask) - len(row))
    assert batch["labels"].tolist() == [[0, 0, 1], [1, 0, 0], [1, 1, 0]]
    assert [len(example) for example in examples] == [sum(map(len, own.windows)) for own in examples]


def test_a_document_is_one_example_even_without_a_token(byte_level: Any, word_piece: Any) -> None:
    (nothing,) = task_of().encode([Document("empty", "")], word_piece)
    assert [ids.tolist() for ids in nothing.windows] == [word_piece("")["input_ids"]]
    bare = deepcopy(byte_level)
    bare.backend_tokenizer.post_processor = None
    (nothing,) = task_of().encode([Document("empty", "")], bare)
    assert [ids.tolist() for ids in nothing.windows] == [[bare.pad_token_id]]


def test_only_the_first_windows_of_a_long_document_are_read(tokenizer: Any) -> None:
    every, first = task_of(), task_of(max_windows=2)
    whole, cut = (task.encode(NOTES, tokenizer) for task in (every, first))
    assert [len(example.windows) for example in cut] == [min(2, len(example.windows)) for example in whole]
    for one, other in zip(whole, cut, strict=True):
        assert [ids.tolist() for ids in one.windows[:2]] == [ids.tolist() for ids in other.windows]


def test_the_windows_are_those_of_a_task_on_tokens(tokenizer: Any) -> None:
    ner = NamedEntityRecognition(max_length=16, stride=4).of_types(["problem"])
    windows = [ids.tolist() for example in ner.encode(NOTES[:3], tokenizer) for ids in example.windows]
    ours = [ids.tolist() for example in task_of().encode(NOTES[:3], tokenizer) for ids in example.windows]
    assert ours == windows


def test_answers_give_labels_from_the_threshold_or_the_likeliest() -> None:
    logits = [np.array([2.0, 0.0, -2.0], np.float32), np.array([-9.0, -8.0, -7.0], np.float32)]
    documents = NOTES[:2]
    many = task_of(threshold=0.4).decode(documents, [None, None], logits)
    assert [answer.labels for answer in many] == [("401.9", "428.0"), ()]
    assert many[0].probabilities == pytest.approx([0.880797, 0.5, 0.119203], rel=1e-5)
    one = task_of("single_label").decode(documents, [None, None], logits)
    assert [answer.labels for answer in one] == [("401.9",), ("584.9",)]
    assert [answer.probabilities.sum() for answer in one] == pytest.approx([1.0, 1.0])
    assert task_of().decode([], [], []) == []


def test_scores_take_any_subset_and_always_have_the_metrics() -> None:
    for kind, documents in (("multi_label", NOTES), ("single_label", ONE_EACH)):
        task = task_of(kind)
        right = [
            LabelAnswer(note.labels, np.array([x in note.labels for x in LABELS]) * 1.0) for note in documents
        ]
        for count in range(1, len(documents) + 1):
            scores = task.score(documents[:count], right[:count])
            assert set(task.metrics) <= set(scores)
            assert scores[task.metric] == 1.0
        assert scores["macro_auc"] == 1.0
        assert task.metric in task.metrics
    assert "macro_auc" not in task_of().score(NOTES[1:2], [LabelAnswer((), np.zeros(3))])


def test_the_labels_of_a_corpus_are_those_of_all_its_documents_and_so_is_the_kind_of_problem(
    caplog: pytest.LogCaptureFixture,
) -> None:
    a, b, c = (Document(label, "x", labels=(label, "z")) for label in "cab")
    task = DocumentClassification().fitted({"north": Split((a,), (b,)), "south": Split((a,), (), (c,))})
    assert task.classes == ("a", "b", "c", "z")
    assert (task.head_type, task.metric) == ("multi_label_classification", "micro_f1")
    auto, forced = DocumentClassification(), DocumentClassification(problem_type="multi_label")
    one_each = {"north": Split(tuple(ONE_EACH))}
    task = auto.fitted(one_each)
    assert (task.head_type, task.metric) == ("single_label_classification", "accuracy")
    assert (task.problem_type, forced.fitted(one_each).metric) == ("single_label", "micro_f1")
    with_bare = {"north": Split((*ONE_EACH, replace(ONE_EACH[0], id="bare", labels=())))}
    forced.fitted(with_bare)
    assert not caplog.text
    assert auto.fitted(with_bare).metric == "micro_f1"
    assert f" 1 of {len(ONE_EACH) + 1} " in caplog.text


@pytest.mark.parametrize(
    ("changes", "documents", "path", "code", "values"),
    [
        (
            {"problem_type": "single_label"}, NOTES, "task.problem_type", "conflict",
            ["document 'a'", "2 labels", "1 more"],
        ),
        (
            {"problem_type": "single_label"}, NOTES[1:], "task.problem_type", "conflict",
            ["document 'b'", "0 labels"],
        ),
        ({}, ONE_EACH[:1], "data.labels", "not_enough_data", ["1 documents", "1 different", "least 2"]),
        ({}, NOTES[1:2], "data.labels", "not_enough_data", ["0 different", "least 1"]),
        ({"threshold": 0.3}, ONE_EACH, "task", "no_effect", ["threshold=0.3"]),
        ({"positive_weight": 2.0}, ONE_EACH, "task", "no_effect", ["positive_weight=2"]),
    ],
)  # fmt: skip
def test_a_corpus_that_does_not_fit_is_refused(
    changes: dict[str, Any], documents: list[Document], path: str, code: str, values: list[str]
) -> None:
    with refused(ConfigurationError, code, at=path, values=values) as error:
        DocumentClassification(**changes).fitted({"north": Split(tuple(documents))})
    assert len(problems_of(error.value)) == 1


def test_labels_the_task_does_not_know_are_refused_together(byte_level: Any) -> None:
    odd = Document("odd", "x", labels=("V58.61", "401.9", "250.00"))
    with pytest.raises(ConfigurationError) as error:
        task_of().encode([*NOTES, odd], byte_level)
    assert problems_of(error.value) == [("data.labels", "unknown_name")] * 2
    assert "'250.00' (document 'odd')" in str(error.value)


def test_a_task_comes_back_from_the_labels_of_a_model() -> None:
    labels = ("b", "a")
    resolved = DocumentClassification(problem_type="single_label")
    again = resolved.restored(labels)
    assert (again.classes, again.metric) == (labels, "accuracy")
    with refused(
        ConfigurationError, "missing", at="task.problem_type", values=["single_label", "multi_label"]
    ):
        DocumentClassification().restored(labels)


def test_predictions_of_a_bfloat16_model_are_float32(byte_level: Any, classifier: Any) -> None:
    task, module = task_of(), classifier.to(torch.bfloat16)
    batch = task.collate(task.encode(NOTES, byte_level))
    assert task.predict(module, batch)[0].dtype == np.float32
