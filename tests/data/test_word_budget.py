from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from support import refused

from fedstrata.core.documents import Document, Span
from fedstrata.core.errors import ConfigurationError
from fedstrata.core.seeding import Seed
from fedstrata.core.settings.partition import PartitionSettings
from fedstrata.data.partition import partition
from fedstrata.data.split import Split
from fedstrata.data.word_budget import by_words

BLANKS = st.sampled_from([" ", "  ", "\n", " \r\n\t"])


@st.composite
def corpora(draw: st.DrawFn) -> list[Document]:
    """Documents of words that occur once in all of them, some without any."""
    documents, word = [], 0
    for number in range(draw(st.integers(0, 8))):
        text = draw(st.sampled_from(["", " "]))
        for _ in range(draw(st.integers(0, 30))):
            text += f"w{word}{draw(BLANKS)}"
            word += 1
        documents.append(Document(f"d{number}", text))
    return documents


@given(corpora(), st.integers(1, 7), st.integers(0, 999))
def test_budgets_are_kept_and_no_word_is_dealt_twice(
    documents: list[Document], clients: int, seed: int
) -> None:
    whole = {document.id: document for document in documents}
    most = sum(len(document.text.split()) for document in documents) // clients
    dealt = by_words(documents, clients, np.random.default_rng(seed))
    words = [[word for document in own for word in document.text.split()] for own in dealt]
    assert len(dealt) == clients
    everything = [word for own in words for word in own]
    assert len(everything) == len(set(everything))
    for own in words:
        assert (max(1, most // 2) <= len(own) <= most) if most > 1 else not own
    for own in dealt:
        for piece in own:
            source = whole[piece.id.partition("#")[0]]
            assert piece.text in source.text
            assert ("#" in piece.id) == (piece.text.split() != source.text.split())
    assert len({piece.id for own in dealt for piece in own if piece.text.split()}) == sum(
        bool(piece.text.split()) for own in dealt for piece in own
    )


def test_budgets_are_uniform_between_half_and_all_of_an_even_share() -> None:
    document = Document("long", "word " * 100_000)
    sizes = np.array(
        [len(own[0].text.split()) for own in by_words([document], 500, np.random.default_rng(0))]
    )
    assert sizes.min() >= 100
    assert sizes.max() <= 200
    np.testing.assert_allclose(np.quantile(sizes, [0.25, 0.5, 0.75]), [125, 150, 175], atol=6)


def test_the_rule_does_not_depend_on_the_order_and_deals_the_other_parts_evenly() -> None:
    documents = [Document(f"d{number:02d}", f"{number} " * 20) for number in range(40)]
    settings = PartitionSettings(by="tokens", clients=4)
    clients = partition(
        Split(tuple(documents[:20]), tuple(documents[20:28]), tuple(documents[28:])), settings, Seed(1)
    )
    again = partition(
        Split(tuple(documents[19::-1]), tuple(documents[27:19:-1]), tuple(documents[:27:-1])),
        settings,
        Seed(1),
    )
    assert clients == again
    assert [len(own.validation) for own in clients.values()] == [2] * 4
    assert [len(own.test) for own in clients.values()] == [3] * 4
    assert clients != partition(Split(tuple(documents)), settings, Seed(2))


def test_what_cannot_be_cut_or_is_too_little_is_refused() -> None:
    settings = PartitionSettings(by="tokens", clients=3)
    with refused(ConfigurationError, "not_supported", at="partition.by", values=["'tokens'", "'a'", "lm"]):
        partition(Split((Document("a", "some words", (Span(0, 4, "x"),)),)), settings, Seed(0))
    with refused(
        ConfigurationError,
        "not_enough_data",
        at="partition.clients",
        values=["3 clients", "2 words", "5 words"],
    ):
        partition(Split((Document("a", "one two three four five"),)), settings, Seed(0))
