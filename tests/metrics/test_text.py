"""Scores of texts against counts by hand: n-grams, subsequences, common words."""

from __future__ import annotations

import math
import re
import string
from collections import Counter
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedstrata.metrics.text import answer_tally, answers_from, exact_match, overlap_scores, token_f1

WORDS = st.lists(st.sampled_from(["no", "chest", "pain", "the", "left", "arm", "fever", "5"]), max_size=9)
PAIRS = st.lists(st.tuples(WORDS, WORDS), min_size=1, max_size=4)


def grams(words: list[str], size: int) -> Counter[tuple[str, ...]]:
    return Counter(tuple(words[start : start + size]) for start in range(len(words) - size + 1))


def f_measure(common: int, own: int, other: int) -> float:
    return 2 * common / (own + other) if common else 0.0


def naive_rouge(hypothesis: list[str], reference: list[str], size: int) -> float:
    own, other = grams(hypothesis, size), grams(reference, size)
    common = sum(min(count, other[gram]) for gram, count in own.items())
    return f_measure(common, sum(own.values()), sum(other.values()))


def naive_rouge_l(hypothesis: list[str], reference: list[str]) -> float:
    """By trying all subsequences of the shorter text, the longest first."""
    short, long = sorted([hypothesis, reference], key=len)
    for size in range(len(short), 0, -1):
        for chosen in combinations(short, size):
            rest = iter(long)
            if all(word in rest for word in chosen):
                return f_measure(size, len(short), len(long))
    return 0.0


def naive_bleu(pairs: list[tuple[list[str], list[str]]]) -> float:
    """The geometric mean of the precisions of 1 to 4 words; each that is 0 counts half as much as before."""
    own, other = (sum(len(pair[side]) for pair in pairs) for side in (0, 1))
    logarithms, halved = [], 1.0
    for size in range(1, 5):
        possible = sum(max(len(hypothesis) - size + 1, 0) for hypothesis, _ in pairs)
        common = sum((grams(one, size) & grams(two, size)).total() for one, two in pairs)
        if possible == 0 or (size == 1 and common == 0):
            return 0.0
        halved = halved if common else halved / 2
        logarithms.append(math.log((common or halved) / possible))
    return min(1.0, math.exp(1 - other / own)) * math.exp(sum(logarithms) / 4)


@given(pairs=PAIRS)
def test_overlap_is_that_of_counting(pairs: list[tuple[list[str], list[str]]]) -> None:
    scores = overlap_scores([" ".join(own) for own, _ in pairs], [" ".join(other) for _, other in pairs])
    for size in (1, 2):
        expected = sum(naive_rouge(*pair, size) for pair in pairs) / len(pairs)
        assert scores[f"rouge{size}"] == pytest.approx(expected)
    longest = sum(naive_rouge_l(*pair) for pair in pairs) / len(pairs)
    assert scores["rougeL"] == pytest.approx(longest)
    assert scores["bleu4"] == pytest.approx(naive_bleu(pairs), abs=1e-9)


def test_the_same_text_has_every_score_and_only_what_is_asked_for_is_scored() -> None:
    text = ["Given aspirin 81 mg daily, and no heparin.", "Denies chest pain on exertion."]
    assert overlap_scores(text, text, rouge=["rouge2"]) == pytest.approx({"rouge2": 1.0, "bleu4": 1.0})


def naive_normal(text: str) -> list[str]:
    kept = "".join(character for character in text.lower() if character not in string.punctuation)
    return [word for word in re.split(r"\s+", kept) if word and word not in ("a", "an", "the")]


ANSWERS = st.lists(
    st.sampled_from(["The", "a", "Left", "left", "arm,", "arm", "'s", "an", "...", "B.", "é"]), max_size=6
).map(" ".join)


@given(answer=ANSWERS, references=st.lists(ANSWERS, min_size=1, max_size=3))
def test_answers_are_compared_word_by_word_with_the_nearest_right_one(
    answer: str, references: list[str]
) -> None:
    own, rights = naive_normal(answer), [naive_normal(reference) for reference in references]
    best = max(
        f_measure(sum((Counter(own) & Counter(right)).values()), len(own), len(right))
        if own and right
        else float(own == right)
        for right in rights
    )
    scores = answers_from(answer_tally([answer], [references]))
    assert scores == {"exact_match": float(own in rights), "f1": pytest.approx(best)}


def test_answers_that_are_no_words_are_equal_to_each_other_only() -> None:
    assert exact_match("the", "A.") == token_f1("the", "A.") == 1.0
    assert token_f1("the", "arm") == 0.0


def test_texts_without_references_are_refused() -> None:
    for texts in ([], ["a"]):
        with pytest.raises(ValueError, match="references"):
            overlap_scores(texts, [])
    for references in ([], [[]]):
        with pytest.raises(ValueError, match="right answers"):
            answer_tally(["a"], references)
