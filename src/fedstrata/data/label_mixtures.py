"""Clients of equal size, each with its own mix of labels: the division of FedNLP, FedPETuning and DropPEFT.

Client k's mix of labels is drawn from Dir(alpha * p), where p is the label shares of the corpus (Hsu, Qi and
Brown, "Measuring the Effects of Non-Identical Data Distribution for Federated Visual Classification", 2019;
Lin et al., "FedNLP", Findings of NAACL 2022). As alpha grows every client comes to have the mix of the
corpus; as it goes to 0, a single label.

Clients take documents without replacement, the first client first. Where too few of a label are left, a
client takes what there is, and fills up with the other labels in proportion to what is left of them (FedNLP's
rule). So the last clients have mixes of what the others left over.

FedNLP draws other mixes for the test documents. Here a client has one mix: that is settled in shares of the
corpus, and then each part of the split is divided by it in whole documents. The label shares of a part may
differ from those of the corpus, and a client may have only a few documents in it; what then cannot be as the
mixes say is spread evenly.
"""

from collections.abc import Mapping, Sequence

import numpy as np


def deal_equally(
    groups: Mapping[str, Sequence[Sequence[str]]], clients: int, alpha: float, rng: np.random.Generator
) -> dict[str, int]:
    """Deals documents to clients of equal size with label mixes of their own.

    Args:
        groups: Document ids by label and, within it, by part of the split.
        clients: K.
        alpha: The concentration of the mixes.
        rng: The generator of this division.

    Returns:
        The number of each document's client. In each part clients have equally many documents, or one more.
    """
    counts = np.array([[len(ids) for ids in members] for members in groups.values()])  # (labels, parts)
    shares = counts.sum(axis=1) / counts.sum()
    mixes = settled(rng.dirichlet(alpha * shares, size=clients), shares)
    assignment: dict[str, int] = {}
    for part in range(counts.shape[1]):
        numbers = in_whole(mixes, counts[:, part], rng)
        for own_numbers, members in zip(numbers.T, groups.values(), strict=True):
            owners = rng.permutation(np.repeat(np.arange(clients), own_numbers))
            assignment.update(zip(members[part], owners.tolist(), strict=True))
    return assignment


def settled(drawn: np.ndarray, shares: np.ndarray) -> np.ndarray:
    """Returns the mixes that clients come to when they take their shares one after the other.

    Args:
        drawn: The mix that each client asks for, (clients, labels), rows summing to 1.
        shares: The share of each label in the corpus, (labels,), summing to 1.

    Returns:
        What each has, (clients, labels): rows sum to 1, and columns to the label's share times the clients.
    """
    left = shares * len(drawn)
    mixes = np.empty_like(drawn)
    for client, wanted in enumerate(drawn):
        own = np.minimum(wanted, left)
        left = left - own
        missing = max(0.0, 1.0 - own.sum())  # a sum of shares may be a rounding error above 1
        fill = left * min(1.0, missing / max(left.sum(), np.finfo(float).tiny))
        left = np.maximum(left - fill, 0.0)  # a rounding error may fall below
        mixes[client] = own + fill
    return mixes


def in_whole(mixes: np.ndarray, counts: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Returns numbers of documents near these mixes.

    First every client's own numbers are drawn by systematic sampling: each is one of the two integers around
    what its mix says, with exactly that expectation. Then single documents of a client change their label, at
    the least sum of squared differences, until the labels add up.

    Args:
        mixes: The mix of each client, (clients, labels), rows summing to 1.
        counts: Documents of each label, (labels,).
        rng: The generator of this division.

    Returns:
        The number of documents of each label for each client, (clients, labels) int64: columns sum to
        `counts`, and rows to equal sizes, or one more for some clients drawn at random.
    """
    clients, total = len(mixes), int(counts.sum())
    sizes = total // clients + (rng.permutation(clients) < total % clients)
    expected = mixes / mixes.sum(axis=1, keepdims=True) * sizes[:, None]
    # Rounded, so that the last column is the whole number that it stands for.
    edges = np.round(np.cumsum(expected, axis=1), 9) + rng.random((clients, 1))
    numbers = np.diff(np.floor(edges), axis=1, prepend=np.zeros((clients, 1))).astype(np.int64)
    _balance(numbers, expected, numbers.sum(axis=0) - counts)
    return numbers


def _balance(numbers: np.ndarray, expected: np.ndarray, surplus: np.ndarray) -> None:
    """Gives documents of labels that are dealt too often other labels, until no label has a surplus.

    The client that changes is each time the one for which the sum of squared differences from what is
    expected grows least: which has most of one label and least of another, compared with its mix.

    Args:
        numbers: Documents of each label for each client, (clients, labels); changed in place.
        expected: What its mix says, (clients, labels).
        surplus: Documents of each label that are dealt and not there, (labels,), summing to 0; changed in
            place.
    """
    beyond = numbers - expected
    gives = np.where((surplus > 0) & (numbers > 0), beyond, -np.inf)
    takes = np.where(surplus < 0, beyond, np.inf)
    most, least = gives.max(axis=1), takes.min(axis=1)
    while surplus.any():
        client = int((most - least).argmax())
        pair = [int(gives[client].argmax()), int(takes[client].argmin())]
        numbers[client, pair] += (-1, 1)
        surplus[pair] += (-1, 1)
        source, target = pair
        gives[client, source] = gives[client, source] - 1 if numbers[client, source] else -np.inf
        takes[client, target] += 1
        changed = slice(client, client + 1)
        if not surplus[pair].all():  # a label is settled, and nobody's business any more
            gives[:, surplus == 0], takes[:, surplus == 0] = -np.inf, np.inf
            changed = slice(None)
        most[changed], least[changed] = gives[changed].max(axis=1), takes[changed].min(axis=1)
