"""Sites that make a mean as two masked sums in one process, for benchmarks; the messages are real."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from pydantic import BaseModel
from torch import Tensor

from fedstrata.client.secure_turns import read_said, said_of
from fedstrata.core.seeding import Seed
from fedstrata.core.types import Plan, Update
from fedstrata.privacy.identity import Identity
from fedstrata.privacy.randomness import SeededRandomness
from fedstrata.privacy.secure_sum.attempts import SumAttempts
from fedstrata.privacy.secure_sum.client import SumClient
from fedstrata.privacy.secure_sum.mean import (
    CHANGES,
    SATURATED,
    SummedUpdate,
    hash_of_frame,
    names_of,
    subjects_of,
)
from fedstrata.privacy.secure_sum.messages import (
    MaskedInput,
    MeanTerms,
    Sharers,
    SummedTensor,
    SumName,
)
from fedstrata.wire import frame

WIDTH, MODEL, RANGE = 768, "00" * 32, 1.0
Said = Mapping[str, BaseModel]  # of each of the two sums


class Clock:
    """Seconds by step."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)

    @contextmanager
    def __call__(self, step: str) -> Iterator[None]:
        """Counts the seconds of a block."""
        started = time.perf_counter()
        yield
        self.seconds[step] += time.perf_counter() - started


class TimedAttempts(SumAttempts):
    """What a site takes down on its disk, and how long that takes."""

    def __init__(self, path: Path, clock: Clock) -> None:
        super().__init__(path)
        self._clock = clock

    @contextmanager
    def together(self) -> Iterator[None]:
        """Takes down that attempts begin; the making of their keys is counted as well, which is nothing."""
        with self._clock("disk"), super().together():
            yield

    def release(self, name: SumName) -> None:
        """Takes down that shares leave."""
        with self._clock("disk"):
            super().release(name)


class Federation:
    """The sites of one mean and what they know of each other; the last of them are those that are lost."""

    def __init__(self, sites: int, terms: MeanTerms, folder: Path, clock: Clock) -> None:
        self.terms, self.clock = terms, clock
        self.sites = [f"site-{number:02d}" for number in range(sites)]
        self.identities = {site: Identity(Ed25519PrivateKey.generate()) for site in self.sites}
        lock = {site: each.public for site, each in self.identities.items()}
        names, subjects = names_of(terms), subjects_of(terms, MODEL)
        self.attempts = {site: TimedAttempts(folder / f"{site}.sqlite", clock) for site in self.sites}
        self.clients = {
            site: {
                which: SumClient(
                    names[which],
                    site,
                    self.identities[site],
                    lock,
                    subject,
                    self.attempts[site],
                )
                for which, subject in subjects.items()
            }
            for site in self.sites
        }

    def answer(self, site: str, order: frame.Frame, kind: type[BaseModel], how: Any) -> frame.Frame:
        """Returns what a site answers to what the server says of one sum, or of both."""
        said: Said = read_said(frame.decode(order, Plan).values, kind, self.clients[site])
        return spoken({which: how(self.clients[site][which], each) for which, each in said.items()})

    def keys(self, site: str) -> frame.Frame:
        """Returns a site's keys."""
        with self.attempts[site].together():
            said = {which: each.keys() for which, each in self.clients[site].items()}
        return spoken(said)

    def masked(
        self, site: str, order: frame.Frame, update: Mapping[str, Tensor], base: Mapping[str, Tensor]
    ) -> frame.Frame:
        """Returns a site's masked inputs, as `client.secure_turns` makes them."""
        assert hash_of_frame(frame.encode(Plan(base))) == self.terms.plan  # noqa: S101 - a site looks, too
        sharers = read_said(frame.decode(order, Plan).values, Sharers, self.clients[site])
        number = self.sites.index(site)
        own = Update(update, {"loss": 1.0}, weight=weight_of(number))
        summed = SummedUpdate(own, base, self.terms, SeededRandomness(Seed(number)))
        clients = self.clients[site]
        tensors = dict(clients[CHANGES].mask(sharers[CHANGES], summed.elements()))
        tensors |= dict(clients[SATURATED].mask(sharers[SATURATED], summed.cut()))
        return spoken(
            {which: MaskedInput(sum=names_of(self.terms)[which], site=site) for which in clients}, tensors
        )


def weight_of(number: int) -> float:
    return 10.0 + number


def spoken(said: Said, tensors: Mapping[str, Tensor] | None = None) -> frame.Frame:
    return frame.encode(Update(tensors or {}, said_of(said)))


def ordered(said: Said) -> frame.Frame:
    return frame.encode(Plan(values=said_of(said)))


def heard(sent: Sequence[frame.Frame], kind: type[BaseModel]) -> dict[str, list[Any]]:
    """Returns what sites say, by sum."""
    read = [read_said(frame.decode(each, Update).values, kind, (CHANGES, SATURATED)) for each in sent]
    return {which: [said[which] for said in read] for which in read[0]}


def shapes_of(numbers: int) -> dict[str, tuple[int, ...]]:
    """Returns tensors of as many numbers: an embedding with half of them, then blocks as those of BERT."""
    rows = numbers // 2 // WIDTH
    shapes: dict[str, tuple[int, ...]] = {"embedding": (rows, WIDTH)}
    left = numbers - rows * WIDTH
    block = [(WIDTH, WIDTH), (WIDTH,)] * 4 + [(4 * WIDTH, WIDTH), (4 * WIDTH,), (WIDTH, 4 * WIDTH), (WIDTH,)]
    while left:
        shape = block[(len(shapes) - 1) % len(block)]
        shape = shape if torch.Size(shape).numel() <= left else (left,)
        shapes[f"tensor {len(shapes)}"] = shape
        left -= torch.Size(shape).numel()
    return shapes


def drawn(shapes: Mapping[str, tuple[int, ...]], seed: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {name: torch.randn(shape, generator=generator).mul_(0.02) for name, shape in shapes.items()}


def terms_of(base: Mapping[str, Tensor], sites: int, attempt: int) -> MeanTerms:
    tensors = tuple(
        SummedTensor(name=name, shape=tuple(each.shape), bound=RANGE) for name, each in base.items()
    )
    return MeanTerms(
        sum=SumName(run="benchmark", round=1, handler="train", call=1, attempt=attempt),
        plan=hash_of_frame(frame.encode(Plan(base))),
        tensors=tensors,
        scale=int(weight_of(sites - 1)),
        loss=True,
    )
