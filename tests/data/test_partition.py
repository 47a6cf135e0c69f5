from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from fedstrata.core.documents import Document, Span
from fedstrata.core.errors import ConfigurationError
from fedstrata.core.seeding import Seed
from fedstrata.core.settings.partition import PartitionSettings
from fedstrata.data.partition import dominant_label, kind, partition
from fedstrata.data.split import PARTS, Split

LABELS = ("drug", "problem", "test", "treatment")
TEXT = "x" * 20


def document(id_: str, label: str = "", **rest: Any) -> Document:
    return Document(id_, TEXT, (Span(0, 2, label),) if label else (), **rest)


def corpus(count: int, *, labels: tuple[str, ...] = LABELS, sites: int = 3) -> Split:
    """Documents whose labels and sites go round in turn; 70, 10 and 20 % by part."""
    documents = tuple(
        document(f"d{index:04d}", labels[index % len(labels)], site=f"site-{index % sites}")
        for index in range(count)
    )
    train, validation = int(count * 0.7), int(count * 0.8)
    return Split(documents[:train], documents[train:validation], documents[validation:])


def sizes(clients: dict[str, Split]) -> list[int]:
    return [len(own.all) for own in clients.values()]


def skew(clients: dict[str, Split]) -> float:
    """Mean total variation distance between a client's label distribution and everybody's."""
    rows = np.array(
        [[sum(dominant_label(d) == x for d in own.all) for x in LABELS] for own in clients.values()]
    )
    everybody = rows.sum(axis=0) / rows.sum()
    return float(np.abs(rows / rows.sum(axis=1, keepdims=True) - everybody).sum(axis=1).mean() / 2)


RULES = st.one_of(
    st.builds(PartitionSettings, by=st.just("iid"), clients=st.integers(1, 6)),
    st.builds(
        PartitionSettings,
        by=st.sampled_from(["dirichlet", "dirichlet_equal", "quantity"]),
        clients=st.integers(1, 6),
        alpha=st.sampled_from([0.5, 1.0, 100.0]),
    ),
    st.builds(
        PartitionSettings,
        by=st.just("speciality"),
        clients=st.integers(1, 6),
        lean=st.sampled_from([0.1, 0.8]),
    ),
)


@pytest.mark.parametrize(
    ("settings", "values"),
    [
        ({"by": "site", "alpha": 0.5}, ["alpha=0.5", "'site'"]),
        ({"by": "speciality", "clients": 2, "alpha": 0.5}, ["alpha=0.5", "'dirichlet'"]),
        ({"by": "quantity", "clients": 2, "lean": 0.5}, ["lean=0.5", "'speciality'", "0.8"]),
    ],
)
def test_a_setting_of_another_rule_is_refused(settings: dict[str, Any], values: list[str]) -> None:
    with pytest.raises(ValidationError) as raised:
        PartitionSettings(**settings)
    (error,) = raised.value.errors()
    assert error["ctx"]["error"].code == "no_effect"
    assert all(value in error["msg"] for value in values)


@given(rule=RULES, seed=st.integers(0, 99), count=st.integers(100, 150), data=st.data())
def test_every_document_goes_to_one_client_whatever_the_order(
    rule: PartitionSettings, seed: int, count: int, data: st.DataObject
) -> None:
    parts = corpus(count)
    clients = partition(parts, rule, Seed(seed))
    assert list(clients) == [f"client-{number:02d}" for number in range(1, (rule.clients or 0) + 1)]
    for part in PARTS:
        given_ids = Counter(d.id for d in getattr(parts, part))
        assert Counter(d.id for own in clients.values() for d in getattr(own, part)) == given_ids
    assert all(own.train for own in clients.values())
    shuffled = Split(*(tuple(data.draw(st.permutations(getattr(parts, part)))) for part in PARTS))
    assert partition(shuffled, rule, Seed(seed)) == clients


@pytest.mark.parametrize("by", ["iid", "dirichlet", "dirichlet_equal", "quantity", "speciality"])
def test_another_seed_is_another_partition(by: Any) -> None:
    rule = PartitionSettings(by=by, clients=3)
    assert partition(corpus(100), rule, Seed(0)) != partition(corpus(100), rule, Seed(1))


def test_by_site_a_client_is_a_site() -> None:
    clients = partition(corpus(30), PartitionSettings(by="site", clients=3), Seed(0))
    assert list(clients) == ["site-0", "site-1", "site-2"]
    assert all(d.site == site for site, own in clients.items() for d in own.all)
    assert sum(sizes(clients)) == 30


def test_iid_gives_every_client_as_much_of_every_part() -> None:
    clients = partition(corpus(103), PartitionSettings(by="iid", clients=7), Seed(3))
    for part in PARTS:
        counts = [len(getattr(own, part)) for own in clients.values()]
        assert max(counts) - min(counts) <= 1


@pytest.mark.parametrize("seed", range(5))
def test_a_smaller_alpha_skews_labels_more(seed: int) -> None:
    skews = [
        skew(partition(corpus(600), PartitionSettings(by="dirichlet", clients=4, alpha=alpha), Seed(seed)))
        for alpha in (0.05, 1.0, 1000.0)
    ]
    assert skews[0] > skews[1] > skews[2]
    assert skews[2] < 0.05


def test_dirichlet_shares_are_those_of_the_distribution() -> None:
    """Over many seeds a client's share of a label has a Dirichlet marginal's mean and variance."""
    alpha, clients, count = 1.0, 4, 100
    rule = PartitionSettings(by="dirichlet", clients=clients, alpha=alpha)
    share = np.array(
        [
            [
                sum(dominant_label(d) == "drug" for d in own.all)
                for own in partition(corpus(count), rule, Seed(s)).values()
            ]
            for s in range(300)
        ]
    ) / (count / len(LABELS))
    total = alpha * clients
    variance = (1 / clients) * (1 - 1 / clients) / (total + 1)
    assert share.mean(axis=0) == pytest.approx(np.full(clients, 1 / clients), abs=0.03)
    assert share.var(axis=0).mean() == pytest.approx(variance, rel=0.15)


def test_a_client_s_parts_follow_one_distribution() -> None:
    clients = partition(corpus(1000), PartitionSettings(by="dirichlet", clients=4, alpha=0.3), Seed(0))
    for own in clients.values():
        for label in LABELS:
            in_train = sum(dominant_label(d) == label for d in own.train)
            in_test = sum(dominant_label(d) == label for d in own.test)
            assert in_test == pytest.approx(in_train * 200 / 700, abs=2)


def test_quantity_skews_sizes_and_not_labels() -> None:
    def spread(alpha: float) -> float:
        rule = PartitionSettings(by="quantity", clients=5, alpha=alpha)
        return float(np.mean([np.std(sizes(partition(corpus(500), rule, Seed(seed)))) for seed in range(10)]))

    assert spread(0.5) > spread(5.0) > spread(500.0)
    clients = partition(corpus(2000), PartitionSettings(by="quantity", clients=3, alpha=5.0), Seed(1))
    assert skew(clients) < 0.1


@pytest.mark.parametrize(("clients", "lean"), [(4, 0.8), (4, 0.3), (2, 0.8), (8, 0.8), (4, 1.0)])
def test_documents_lean_to_the_clients_of_their_kind(clients: int, lean: float) -> None:
    rule = PartitionSettings(by="speciality", clients=clients, lean=lean)
    divided = partition(corpus(2000), rule, Seed(0))
    serving = {  # kinds are dealt in turn: to one client each, or to every client that comes round
        label: {f"client-{c + 1:02d}" for c in range(clients) if c % 4 == index or c == index % clients}
        for index, label in enumerate(LABELS)
    }
    at_home = np.mean([name in serving[kind(d)] for name, own in divided.items() for d in own.all])
    home_share = len(serving["drug"]) / clients
    assert at_home == pytest.approx(lean + (1 - lean) * home_share, abs=0.03)
    assert max(sizes(divided)) < 1.3 * min(sizes(divided))


def test_documents_of_no_kind_go_anywhere() -> None:
    documents = (*(document(f"k{i}", "drug") for i in range(200)), *(document(f"n{i}") for i in range(400)))
    clients = partition(Split(documents), PartitionSettings(by="speciality", clients=4, lean=1.0), Seed(0))
    without = [sum(not d.spans for d in own.all) for own in clients.values()]
    assert min(without) > 70
    assert max(without) < 130


def test_the_label_and_the_kind_of_a_document() -> None:
    spans = tuple(
        Span(i, i + 1, label) for i, label in enumerate(["test", "drug", "test", "drug", "problem"])
    )
    both = Document("a", TEXT, spans, labels=("icd",), metadata={"speciality": "urology"})
    assert (dominant_label(both), kind(both)) == ("drug", "urology")
    labelled = Document("a", TEXT, labels=("410.9", "250.0"))
    assert (dominant_label(labelled), kind(labelled)) == ("410.9", "410.9")
    assert kind(Document("a", TEXT)) == ""


def test_client_names_sort_in_order_however_many() -> None:
    clients = partition(corpus(400), PartitionSettings(by="iid", clients=120), Seed(0))
    assert next(iter(clients)) == "client-001"
    assert list(clients) == sorted(clients)


PLAIN = Split(tuple(document(f"{i}") for i in range(9)))


@pytest.mark.parametrize(
    ("parts", "rule", "path", "words"),
    [
        (Split((document("a", site="x"), document("b"))), {"by": "site"}, "partition.by", ["1 of 2", "'b'"]),
        (Split(), {"by": "site"}, "partition.by", ["no documents"]),
        (corpus(30), {"by": "site", "clients": 4}, "partition.clients", ["4", "3 sites", "'site-2'"]),
        (
            Split((document("a", site="x"),), (), (document("b", site="y"),)), {"by": "site"}, "partition.by",
            ["'y'", "training"],
        ),
        (corpus(10), {"by": "iid", "clients": 8}, "partition.clients", ["8 clients", "7", "10 documents"]),
        (Split(), {"by": "iid", "clients": 1}, "partition.clients", ["0 documents"]),
        (PLAIN, {"by": "dirichlet", "clients": 2}, "partition.by", ["'dirichlet'", "9 documents"]),
        (
            Split((Document("a", "x", text_pair="y"), *PLAIN.train)), {"by": "tokens", "clients": 2},
            "partition.by", ["1 of them", "pairs of texts", "'a'"],
        ),
        (
            corpus(20), {"by": "dirichlet", "clients": 14, "alpha": 0.01}, "partition.alpha",
            ["alpha=0.01", "14 clients", "14 training", "client-", "raise partition.alpha"],
        ),
        (corpus(20), {"by": "quantity", "clients": 14, "alpha": 0.01}, "partition.alpha", ["alpha=0.01"]),
        (
            corpus(20, labels=("drug",) * 9 + ("test",)), {"by": "speciality", "clients": 14, "lean": 1.0},
            "partition.lean", ["lean=1", "lower partition.lean"],
        ),
    ],
)  # fmt: skip
def test_what_cannot_be_partitioned_is_refused(
    parts: Split, rule: dict[str, Any], path: str, words: list[str]
) -> None:
    with pytest.raises(ConfigurationError) as error:
        partition(parts, PartitionSettings(**rule), Seed(0))
    assert [problem.path for problem in error.value.problems] == [path]
    assert all(word in str(error.value) for word in words)
