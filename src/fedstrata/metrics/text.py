"""Scores of texts against texts: ROUGE and BLEU of what was written, exact match and F1 of short answers.

- ROUGE-N (Lin, "ROUGE: A Package for Automatic Evaluation of Summaries", 2004) is the F-measure of common
  n-grams, ROUGE-L that of the longest common subsequence, by Google's `rouge-score`: mean over all examples,
  without stemming. Its words are runs of `a` to `z` and digits in lower case: other scripts are passed over.
- BLEU-4 (Papineni et al., ACL 2002) is that of the corpus, as sacreBLEU takes it by default (tokens of 13a,
  exponential smoothing), over 100.
- Exact match and token F1 are those of SQuAD (Rajpurkar et al., EMNLP 2016), which SuperGLUE takes for
  ReCoRD: case, punctuation, articles and blanks do not count, and of several right answers the nearest does.
  As in SQuAD 2.0, F1 with an answer of no words is 1 if both have none.
"""

import math
import re
import string
from collections import Counter
from collections.abc import Sequence

from fedstrata.core.types import Tally
from fedstrata.metrics.counts import Counts, added, mean

ROUGE = ("rouge1", "rouge2", "rougeL")
"""The kinds of ROUGE, by the names of their scores."""

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_WITHOUT_PUNCTUATION = str.maketrans("", "", string.punctuation)


def overlap_scores(
    hypotheses: Sequence[str], references: Sequence[str], *, rouge: Sequence[str] = ROUGE
) -> dict[str, float]:
    """Scores texts by what they have in common with one reference each.

    Args:
        hypotheses: What was written, or reconstructed; at least one.
        references: What it should be, in the same order.
        rouge: Kinds of ROUGE to score, of `ROUGE`; ROUGE-L takes a time that grows with the product of the
            lengths of two texts.

    Returns:
        The kinds of ROUGE, and `bleu4`; from 0 to 1 each.

    Raises:
        ValueError: There are none, or not as many references.

    Example:
        >>> scores = overlap_scores(["No chest pain today."], ["Denies chest pain today."])
        >>> [f"{name} {value:.3f}" for name, value in scores.items()]
        ['rouge1 0.750', 'rouge2 0.667', 'rougeL 0.750', 'bleu4 0.669']
    """
    if not hypotheses:
        raise ValueError("there are no texts to score against references")
    return overlap_from(overlap_tally(hypotheses, references, rouge=rouge))


def overlap_tally(
    hypotheses: Sequence[str], references: Sequence[str], *, rouge: Sequence[str] = ROUGE
) -> dict[str, float]:
    """Returns the sums of ROUGE, and what BLEU is made of: n-grams that match, n-grams, and words.

    Raises:
        ValueError: There are not as many references.
    """
    if len(hypotheses) != len(references):
        raise ValueError(f"{len(hypotheses)} hypotheses and {len(references)} references: one each is needed")
    from rouge_score.rouge_scorer import RougeScorer  # noqa: PLC0415 - seldom needed, and slow to import
    from sacrebleu.metrics import BLEU  # noqa: PLC0415

    scorer = RougeScorer(list(rouge))
    each = [scorer.score(*pair) for pair in zip(references, hypotheses, strict=True)]
    # Forced: without a warning. An empty text has no n-gram, and stands for none.
    bleu = BLEU(force=True).corpus_score(list(hypotheses) or [""], [list(references) or [""]])
    rows = [{name: float(own[name].fmeasure) for name in rouge} for own in each]
    sums = added([dict.fromkeys(rouge, 0.0), *rows])
    grams = {f"matching_{n}": count for n, count in enumerate(bleu.counts, start=1)}
    grams |= {f"grams_{n}": count for n, count in enumerate(bleu.totals, start=1)}
    return {"documents": len(each), **sums, **grams, "words": bleu.sys_len, "right_words": bleu.ref_len}


def overlap_from(tally: Tally) -> dict[str, float]:
    """Scores texts by what `overlap_tally` summed up; see `overlap_scores`."""
    from sacrebleu.metrics import BLEU  # noqa: PLC0415 - slow to import

    bleu = BLEU.compute_bleu(
        correct=[int(tally[f"matching_{n}"]) for n in (1, 2, 3, 4)],
        total=[int(tally[f"grams_{n}"]) for n in (1, 2, 3, 4)],
        sys_len=int(tally["words"]),
        ref_len=int(tally["right_words"]),
        smooth_method="exp",
    )
    means = {name: mean(tally, name) for name in ROUGE if name in tally}
    return {**means, "bleu4": bleu.score / 100.0}


def answer_tally(answers: Sequence[str], references: Sequence[Sequence[str]]) -> dict[str, float]:
    """Returns the number of questions, and the sums of exact matches and F1.

    Args:
        answers: What was answered, in short.
        references: The right answers to each question, at least one each.

    Raises:
        ValueError: There are not as many references, or a question has none.
    """
    if len(answers) != len(references) or not all(references):
        raise ValueError(f"{len(answers)} answers to {len(references)} questions with right answers")
    pairs = list(zip(answers, references, strict=True))
    exact = [max(exact_match(answer, one) for one in right) for answer, right in pairs]
    overlap = [max(token_f1(answer, one) for one in right) for answer, right in pairs]
    return {"documents": len(pairs), "exact_match": math.fsum(exact), "f1": math.fsum(overlap)}


def answers_from(tally: Tally) -> dict[str, float]:
    """Returns `exact_match` and `f1`, means over the questions, by what `answer_tally` summed up.

    Example:
        >>> answers_from(answer_tally(["The left arm."], [["left arm", "arm"]]))
        {'exact_match': 1.0, 'f1': 1.0}
    """
    return {name: mean(tally, name) for name in ("exact_match", "f1")}


def exact_match(answer: str, reference: str) -> float:
    """Returns 1 if two answers are the same but for case, punctuation, articles and blanks, else 0."""
    return float(normalized(answer) == normalized(reference))


def token_f1(answer: str, reference: str) -> float:
    """Returns the F1 of the words that two answers have in common, each as often as both have it."""
    own, right = normalized(answer).split(), normalized(reference).split()
    if not own or not right:
        return float(own == right)
    return Counts(len(right), len(own), (Counter(own) & Counter(right)).total()).f1


def normalized(answer: str) -> str:
    """Returns an answer in lower case, without punctuation and articles, with single blanks."""
    bare = answer.lower().translate(_WITHOUT_PUNCTUATION)
    return " ".join(_ARTICLES.sub(" ", bare).split())
