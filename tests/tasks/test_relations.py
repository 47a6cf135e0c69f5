"""Relations as classes of marked pairs: which pairs, what the model reads, what its answers amount to."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support import refused
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
from torch.nn import functional as F
from transformers import PreTrainedTokenizerFast

from fedstrata.core.documents import Document, Relation, Span
from fedstrata.core.errors import ConfigurationError
from fedstrata.core.seeding import Seed
from fedstrata.core.settings.model import ModelSettings
from fedstrata.data.readers import read
from fedstrata.data.select import related_types
from fedstrata.data.split import Split
from fedstrata.data.synthetic import generate
from fedstrata.models.load import read_tokenizer
from fedstrata.tasks.mention_pairs import WORD, PairMarker, candidate_pairs, markable
from fedstrata.tasks.relations import RelationClassification

TEXT = "Given 81 mg of aspirin daily for severe chest pain ; no fever ."
MODIFIERS = {"drug": ["dosage", "frequency"], "problem": ["severity", "problem"]}


def at(words: str, label: str, text: str = TEXT) -> Span:
    start = text.index(words)
    return Span(start, start + len(words), label)


SPANS = (
    at("81 mg", "dosage"),
    at("aspirin", "drug"),
    at("daily", "frequency"),
    at("severe", "severity"),
    at("severe chest pain", "problem"),
    at("fever", "problem"),
)
DOSAGE, DRUG, FREQUENCY, SEVERITY, PAIN, FEVER = range(6)
NOTE = Document(
    "n",
    TEXT,
    SPANS,
    (
        Relation(DRUG, DOSAGE, "modifies"),
        Relation(DRUG, FREQUENCY, "modifies"),
        Relation(PAIN, SEVERITY, "how"),
    ),
)


@pytest.fixture(scope="module")
def words() -> Any:
    """A tokenizer whose tokens are words and signs, all of which can be read again."""
    signs = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *"@*#^;.,"]
    vocabulary = dict.fromkeys([*signs, *WORD.findall(TEXT.lower()), *map(str, range(60))])
    vocabulary |= dict.fromkeys(
        ["drug", "problem", "dosage", "frequency", "severity", "lab", "value", "a", "b"]
    )
    ids = {word: number for number, word in enumerate(vocabulary)}
    tokenizer = Tokenizer(models.WordLevel(ids, unk_token=signs[1]))
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    names = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **names)


def task_of(types: tuple[str, ...] = ("how", "modifies"), **changes: Any) -> RelationClassification:
    return RelationClassification(**{"modifiers": MODIFIERS, **changes}).of_types(types)


def read_as(tokenizer: Any, ids: np.ndarray) -> str:
    return " ".join(tokenizer.convert_ids_to_tokens(ids.tolist()))


def windows(document: Document, tokenizer: Any, **changes: Any) -> dict[tuple[int, int], str]:
    """What the model reads of each pair of a document."""
    examples = task_of(**changes).encode([document], tokenizer)
    return {(each.main, each.modifier): read_as(tokenizer, each.input_ids) for each in examples}


# ---- candidates ----------------------------------------------------------------------------------------
def test_candidates_are_of_types_that_go_together_and_near_each_other() -> None:
    assert candidate_pairs(NOTE, MODIFIERS, 99) == [
        (DRUG, DOSAGE), (DRUG, FREQUENCY), (PAIN, SEVERITY), (PAIN, FEVER), (FEVER, SEVERITY), (FEVER, PAIN),
    ]  # fmt: skip
    assert candidate_pairs(NOTE, MODIFIERS, 2) == [
        (DRUG, DOSAGE), (DRUG, FREQUENCY), (PAIN, SEVERITY), (PAIN, FEVER), (FEVER, PAIN),
    ]  # fmt: skip
    # "of" lies between the drug and its dosage; nothing between it and its frequency.
    assert candidate_pairs(NOTE, MODIFIERS, 0) == [(DRUG, FREQUENCY), (PAIN, SEVERITY)]
    assert candidate_pairs(NOTE, {"test": ["lab value"]}, 99) == []
    assert candidate_pairs(Document("n", ""), MODIFIERS, 99) == []


@given(st.data())
def test_distance_is_the_number_of_words_that_begin_between_two_mentions(data: st.DataObject) -> None:
    text = data.draw(st.text(alphabet="ab .", max_size=30))
    bounds = st.tuples(st.integers(0, len(text)), st.integers(0, len(text)))
    drawn = data.draw(st.lists(bounds.filter(lambda pair: pair[0] < pair[1]), max_size=5)) if text else []
    spans = tuple(
        sorted((Span(start, end, "x") for start, end in drawn), key=lambda span: (span.start, span.end))
    )
    most = data.draw(st.integers(0, 4))
    expected = []
    for main, one in enumerate(spans):
        for modifier, other in enumerate(spans):
            between = range(min(one.end, other.end), max(one.start, other.start))
            apart = sum(match.start() in between for match in WORD.finditer(text))
            if main != modifier and apart <= most:
                expected.append((main, modifier))
    assert candidate_pairs(Document("n", text, spans), {"x": ["x"]}, most) == expected


def reached(
    documents: Sequence[Document], modifiers: Mapping[str, Sequence[str]], most_words: int
) -> tuple[int, int, float]:
    """How many relations there are, how many pairs are asked about, and the share that answers can hold."""
    relations = asked = held = 0
    for document in documents:
        candidates = set(candidate_pairs(document, modifiers, most_words))
        relations += len(set(document.relations))
        asked += len(candidates)
        held += len(candidates & {(own.head, own.tail) for own in document.relations})
    return relations, asked, held / relations


def test_types_that_are_related_in_the_data() -> None:
    assert related_types([NOTE]) == {"drug": ["dosage", "frequency"], "problem": ["severity"]}


# ---- what the model reads ------------------------------------------------------------------------------
def test_both_mentions_are_marked_with_their_types(words: Any) -> None:
    read_pairs = windows(NOTE, words)
    assert read_pairs[DRUG, DOSAGE] == (
        "[CLS] given # ^ dosage ^ 81 mg # of @ * drug * aspirin @ daily for severe chest pain ; no fever . "
        "[SEP]"
    )
    assert "@ * problem * # ^ severity ^ severe # chest pain @" in read_pairs[PAIN, SEVERITY]
    assert "# ^ problem ^ severe chest pain # ; no @ * problem * fever @ . [SEP]" in read_pairs[FEVER, PAIN]


def test_without_types_the_signs_alone_stand_around_the_mentions(words: Any) -> None:
    assert windows(NOTE, words, typed=False)[DRUG, DOSAGE] == (
        "[CLS] given # 81 mg # of @ aspirin @ daily for severe chest pain ; no fever . [SEP]"
    )


def test_equal_nested_and_crossing_mentions(words: Any) -> None:
    text = "a b a b"
    spans = (Span(0, 3, "drug"), Span(0, 3, "Lab_value"), Span(2, 5, "drug"), Span(2, 5, "dosage"))
    note = Document("n", text, spans)
    read_pairs = windows(note, words, modifiers={"drug": ["Lab_value", "dosage"]})
    assert read_pairs[0, 1] == "[CLS] @ * drug * # ^ lab value ^ a b # @ a b [SEP]"
    assert read_pairs[0, 3] == "[CLS] @ * drug * a # ^ dosage ^ b @ a # b [SEP]"
    assert read_pairs[2, 1] == "[CLS] # ^ lab value ^ a @ * drug * b # a @ b [SEP]"


def test_a_window_has_as_much_text_on_both_sides_as_there_is(words: Any) -> None:
    text = " ".join(map(str, range(60)))
    spans = (
        at("2 ", "drug", text),
        at("30 ", "drug", text),
        at("31 ", "dosage", text),
        at("58 ", "drug", text),
    )
    note = Document("n", text, tuple(Span(span.start, span.end - 1, span.label) for span in spans))
    read_pairs = windows(note, words, max_length=32, most_words=60)
    middle = "@ * drug * 30 @ # ^ dosage ^ 31 #"
    before, after = (side.split() for side in read_pairs[1, 2].split(middle))
    assert before == ["[CLS]", *map(str, range(21, 30))]
    assert after == [*map(str, range(32, 41)), "[SEP]"]
    # The middle of what is too long is left out, and both mentions are there.
    for main in (0, 3):
        assert len(read_pairs[main, 2].split()) == 32
        assert "# ^ dosage ^ 31 #" in read_pairs[main, 2]
        assert f"@ * drug * {'2' if main == 0 else '58'} @" in read_pairs[main, 2]
    short = windows(Document("n", "30 31", (Span(0, 2, "drug"), Span(3, 5, "dosage"))), words, max_length=32)
    assert short[0, 1] == f"[CLS] {middle} [SEP]"


def test_a_mention_within_a_token_is_marked_with_the_whole_of_it(words: Any) -> None:
    note = Document(
        "n", "aspirin daily", (Span(2, 4, "drug"), Span(7, 8, "dosage"), Span(9, 13, "frequency"))
    )
    read_pairs = windows(note, words)
    assert read_pairs[0, 2] == "[CLS] @ * drug * aspirin @ # ^ frequency ^ daily # [SEP]"
    # What touches no token is marked where it stands.
    assert read_pairs[0, 1] == "[CLS] @ * drug * aspirin @ # ^ dosage ^ # daily [SEP]"


@given(st.data())
def test_windows_hold_the_text_around_a_pair_and_nothing_else(words: Any, data: st.DataObject) -> None:
    count = data.draw(st.integers(1, 40))
    text = " ".join(str(number) for number in range(count))
    ends = st.integers(0, count - 1)
    places = sorted(data.draw(st.lists(st.tuples(ends, ends).map(sorted), min_size=2, max_size=2)))
    tokens = [match.span() for match in WORD.finditer(text)]
    spans = tuple(Span(tokens[first][0], tokens[last][1], "a") for first, last in places)
    document = Document("n", text, spans)
    length = data.draw(st.integers(32, 60))
    marker = PairMarker(words, length)
    encoded = words(text, add_special_tokens=False, return_offsets_mapping=True)
    marked = markable(document, encoded["input_ids"], encoded["offset_mapping"])
    main, modifier = data.draw(st.sampled_from([(0, 1), (1, 0)]))
    input_ids, marks = marker.window(marked, spans, main, modifier)
    window = read_as(words, input_ids).split()
    assert len(window) == min(length, count + 2 + 10)
    assert (window[0], window[-1]) == ("[CLS]", "[SEP]")
    plain = [token for token in window[1:-1] if token.isdecimal()]
    assert plain == sorted(plain, key=int)
    assert plain[0] == str(places[0][0]) or places[0][0] > 0
    if len(window) < length:
        assert plain == text.split()
        inside = " ".join(window).split("@ * a * ")[1].split(" @")[0].split()
        first, last = places[main]
        assert [token for token in inside if token.isdecimal()] == [str(n) for n in range(first, last + 1)]
    # Where the marks end: at the closing ones, or at the last token before the gap in what was too long.
    for place, sign in zip(marks, "@#", strict=True):
        closing = [number for number, token in enumerate(window) if token == sign][1:]
        assert place == (closing[-1] if closing else 1 + (length - 2) - (length - 2) // 2 - 1)


def test_tokenizers_that_cannot_mark_are_refused(words: Any, word_piece: Any) -> None:
    with refused(ConfigurationError, "lacks_tokens", at="model.tokenizer", values=["@ * # ^"]):
        task_of().encode([NOTE], word_piece)
    assert task_of().encode([NOTE], read_tokenizer(ModelSettings()))


# ---- examples and classes ------------------------------------------------------------------------------
def test_classes_are_none_and_the_types(words: Any) -> None:
    task = task_of()
    assert task.classes == ("none", "how", "modifies")
    targets = {(each.main, each.modifier): each.target for each in task.encode([NOTE], words)}
    assert targets == {
        (DRUG, DOSAGE): 2, (DRUG, FREQUENCY): 2, (PAIN, SEVERITY): 1,
        (PAIN, FEVER): 0, (FEVER, SEVERITY): 0, (FEVER, PAIN): 0,
    }  # fmt: skip


def test_of_several_relations_of_two_mentions_the_first_in_the_alphabet_is_learnt(words: Any) -> None:
    relations = (Relation(PAIN, SEVERITY, "modifies"), Relation(PAIN, SEVERITY, "how"))
    examples = task_of().encode([Document("n", TEXT, SPANS, relations)], words)
    assert [each.target for each in examples if (each.main, each.modifier) == (PAIN, SEVERITY)] == [1]


def test_documents_that_lack_relations_are_answered_and_not_learnt_from(words: Any) -> None:
    lacking = Document("m", TEXT, SPANS, lacks_relations=True)
    task = task_of()
    assert {each.target for each in task.encode([lacking], words)} == {-100}
    assert task.training_examples([lacking], words) == []
    assert {each.document for each in task.training_examples([lacking, NOTE], words)} == {1}
    assert not task.scorable(lacking)
    answered = task.annotate(lacking, (Relation(PAIN, SEVERITY, "how"),))
    assert (answered.spans, answered.lacks_relations) == (SPANS, False)


def test_a_share_of_the_pairs_without_a_relation_stands_for_all(words: Any) -> None:
    spans = tuple(Span(index * 3, index * 3 + 2, "problem") for index in range(20))
    note = Document("n", "ab " * 20, spans, (Relation(0, 1, "how"),))
    whole = task_of().training_examples([note], words)
    assert [each.weight for each in whole] == [1.0] * 380
    drawn = task_of(negatives=0.25).training_examples([note], words)
    assert Counter(each.target for each in drawn)[1] == 1
    assert 60 < len(drawn) < 130
    assert {(each.target, each.weight) for each in drawn} == {(0, 4.0), (1, 1.0)}
    again = task_of(negatives=0.25).training_examples([NOTE, note], words)
    kept = [(each.main, each.modifier) for each in again if each.document == 1]
    assert kept == [(each.main, each.modifier) for each in drawn]
    assert len(task_of(negatives=0.25).encode([note], words)) == 380


def test_the_loss_is_the_weighted_sum_of_cross_entropies(tiny_model: Any, words: Any) -> None:
    model = tiny_model("bert", config={"vocab_size": len(words)}).module.eval()
    task = task_of(negatives=0.5)
    examples = [
        *task.encode([NOTE], words),
        *task.encode([Document("m", TEXT, SPANS, lacks_relations=True)], words),
    ]
    batch = task.collate(examples)
    total, terms = task.loss(model, batch)
    # What a pair's classes are read off: the closing marks of both mentions.
    states = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits
    for row, (example, logits) in enumerate(zip(examples, task.predict(model, batch), strict=True)):
        tokens = read_as(words, example.input_ids).split()
        closing = [len(tokens) - 1 - tokens[::-1].index(sign) for sign in "@#"]
        np.testing.assert_allclose(logits, states[row, closing].sum(dim=0).detach(), atol=1e-5)
    expected, weights = 0.0, 0.0
    for example, logits in zip(examples, task.predict(model, batch), strict=True):
        alone = task.predict(model, task.collate([example]))[0]
        np.testing.assert_allclose(logits, alone, atol=1e-5)
        if example.target >= 0:
            weight = 2.0 if example.target == 0 else 1.0
            expected += weight * float(F.cross_entropy(torch.tensor(alone), torch.tensor(example.target)))
            weights += weight
    assert float(terms) == weights == 9.0
    assert float(total.detach()) == pytest.approx(expected, rel=1e-4)


# ---- answers -------------------------------------------------------------------------------------------
def sure(task: RelationClassification, classes: list[int]) -> list[np.ndarray]:
    return [np.eye(len(task.classes), dtype=np.float32)[number] for number in classes]


def test_right_classes_give_the_relations_back(words: Any) -> None:
    task = task_of()
    documents = [Document("empty", "a b"), NOTE]
    examples = task.encode(documents, words)
    answers = task.decode(documents, examples, sure(task, [each.target for each in examples]))
    assert answers[0] == ()
    assert set(answers[1]) == set(NOTE.relations)
    assert task.annotate(documents[1], answers[1]).relations == answers[1]
    assert task.score(documents, answers)["f1"] == 1.0


def test_scores_are_of_triples_by_type_and_over_all(words: Any) -> None:
    task = task_of()
    answer = (
        Relation(DRUG, DOSAGE, "modifies"),  # right
        Relation(PAIN, SEVERITY, "modifies"),  # another type
        Relation(DOSAGE, DRUG, "modifies"),  # the wrong way round
    )
    scores = task.score([NOTE], [answer])
    expected = {
        "f1": 2 / 6, "precision": 1 / 3, "recall": 1 / 3,
        "f1/how": 0.0, "precision/how": 0.0, "recall/how": 0.0,
        "f1/modifies": 2 / 5, "precision/modifies": 1 / 3, "recall/modifies": 1 / 2,
    }  # fmt: skip
    assert expected.items() <= scores.items()
    assert set(scores) <= set(task.metric_names)
    # Spans that are equal are one mention, and a relation said twice is one.
    twice = (Relation(DRUG, DOSAGE, "modifies"),) * 2
    assert task.score([NOTE], [twice])["precision"] == 1.0


def test_relations_of_mentions_that_were_never_asked_about_are_missed(words: Any) -> None:
    task = task_of(most_words=0)
    examples = task.encode([NOTE], words)
    answers = task.decode([NOTE], examples, sure(task, [each.target for each in examples]))
    scores = task.score([NOTE], answers)
    assert scores["precision"] == 1.0
    assert scores["recall"] == reached([NOTE], MODIFIERS, 0)[2] == 2 / 3


def test_what_is_known_of_an_input_are_its_mentions_and_the_relations_of_known_types() -> None:
    note = Document("n", TEXT, SPANS, (*NOTE.relations, Relation(PAIN, FEVER, "same")), labels=("401.9",))
    assert task_of().known(note) == NOTE


# ---- the task of a corpus ------------------------------------------------------------------------------
def test_types_and_pairs_are_those_of_the_training_documents() -> None:
    other = Document("o", TEXT, SPANS, (Relation(PAIN, FEVER, "same"),))
    clients = {
        "north": Split((NOTE,), (), (NOTE,)),
        "south": Split((other,)),
        "held out": Split((), (), (NOTE,)),
    }
    task = RelationClassification().fitted(clients)
    assert task.known_types == ("how", "modifies", "same")
    assert task.modifiers == {"drug": ["dosage", "frequency"], "problem": ["problem", "severity"]}
    assert RelationClassification.model_validate(task.model_dump()).modifiers == task.modifiers
    again = task.restored(task.classes)
    assert (again.classes, again.modifiers) == (task.classes, task.modifiers)
    chosen = RelationClassification(modifiers={"problem": ["severity"]})
    assert chosen.fitted({"n": Split((NOTE,))}).modifiers is chosen.modifiers


@pytest.mark.parametrize(
    ("clients", "path", "code", "values"),
    [
        (
            {"n": Split((Document("d", TEXT, SPANS),))}, "data.relations", "nothing_to_learn",
            ["1 training documents"],
        ),
        (
            {"n": Split((Document("d", TEXT, SPANS, (Relation(0, 1, "none"),)),))}, "data.relations",
            "reserved", ["'none'"],
        ),
        (
            {"n": Split((NOTE,), (), (Document("d", TEXT, SPANS, (Relation(0, 1, "same"),)),))},
            "data.relations", "unknown_name", ["'same' (test document 'd')", ": how"],
        ),
        (
            {"n": Split((NOTE,)), "s": Split((Document("d", TEXT, SPANS, lacks_relations=True),))},
            "partition", "nothing_to_learn", ["of s"],
        ),
        (
            {"n": Split((NOTE, Document("p", "a", text_pair="b")))}, "task.name", "not_supported",
            ["'relations'"],
        ),
    ],
)  # fmt: skip
def test_data_that_cannot_be_learnt_from_is_refused(
    clients: dict[str, Split], path: str, code: str, values: list[str]
) -> None:
    with refused(ConfigurationError, code, at=path, values=values):
        RelationClassification().fitted(clients)


def test_a_saved_model_needs_its_pairs_and_its_classes() -> None:
    with refused(ConfigurationError, "missing", at="task.modifiers", values=["'auto'"]):
        RelationClassification().restored(("none", "how"))
    settings = RelationClassification(modifiers=MODIFIERS)
    for labels in (("how", "modifies"), ("none",), ("none", "modifies", "how")):
        with refused(ConfigurationError, "conflict", at="model.name", values=["task relations"]):
            settings.restored(labels)


# ---- corrupt clients -----------------------------------------------------------------------------------
def test_disorder_in_the_examples_of_a_corrupt_client(words: Any) -> None:
    task = task_of()
    examples = task.encode([NOTE], words)
    flipped = task.corrupt(examples, "label_flips", words, Seed(0))
    assert [each.target for each in flipped] == [(each.target + 1) % 3 for each in examples]
    shuffled = task.corrupt(examples, "shuffled_labels", words, Seed(0))
    assert Counter(each.target for each in shuffled) == Counter(each.target for each in examples)
    assert [each.target for each in shuffled] != [each.target for each in examples]
    scrambled = task.corrupt(examples, "shuffled_tokens", words, Seed(0))
    assert [sorted(each.input_ids) for each in scrambled] == [sorted(each.input_ids) for each in examples]
    assert any((one.input_ids != two.input_ids).any() for one, two in zip(scrambled, examples, strict=True))
    assert task.collate(scrambled)["input_ids"].shape == task.collate(examples)["input_ids"].shape


# ---- real and synthetic corpora ------------------------------------------------------------------------
def test_nearly_all_relations_of_synthetic_notes_are_candidates() -> None:
    documents = generate(seed=0, sites=2, notes=20)
    most = RelationClassification().most_words
    relations, _, recall = reached(documents, related_types(documents), most)
    assert relations > 300
    assert recall > 0.99


@pytest.mark.slow
def test_candidates_of_maccrobat(data_root: Path) -> None:
    documents = read(data_root / "maccrobat2020" / "brat", "brat", unannotated="skip")
    kept = [
        Document(own.id, own.text, own.spans, tuple(each for each in own.relations if each.label == "MODIFY"))
        for own in documents
    ]
    found = {most: reached(kept, related_types(kept), most) for most in (0, 5, 10, 20, 40)}
    assert {relations for relations, _, _ in found.values()} == {11565}
    assert {most: round(recall, 3) for most, (_, _, recall) in found.items()} == {
        0: 0.391,
        5: 0.884,
        10: 0.959,
        20: 0.991,
        40: 0.998,
    }
    assert found[20][1] == 235023
