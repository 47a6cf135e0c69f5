"""Sites that make a mean as one masked sum in one process, for benchmarks; the messages are real."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from sqlite3 import Connection
from typing import TypeVar

import torch
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from pydantic import BaseModel
from torch import Tensor

from fedstrata.client.secure_turns import read_said, said_of
from fedstrata.core.seeding import Seed
from fedstrata.core.types import Plan, Update
from fedstrata.privacy.identity import Identity
from fedstrata.privacy.secure_sum.client import SumClient
from fedstrata.privacy.secure_sum.mean import SummedUpdate, hash_of_frame, subject_of
from fedstrata.privacy.secure_sum.messages import (
    MaskedInput,
    MeanTerms,
    Sharers,
    SummedTensor,
    SumName,
)
from fedstrata.privacy.secure_sum.release_guard import ReleaseGuard
from fedstrata.wire import frame

WIDTH, MODEL, AGREED, RANGE = 768, "00" * 32, "11" * 32, 1.0
Said = TypeVar("Said", bound=BaseModel)


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


class TimedGuard(ReleaseGuard):
    """What a site records on its disk, and how long that takes."""

    def __init__(self, path: Path, site: str, clock: Clock) -> None:
        super().__init__(path, site)
        self._clock = clock

    @contextmanager
    def _transaction(self) -> Iterator[Connection]:
        with self._clock("disk"), super()._transaction() as connection:
            yield connection


class Federation:
    """The sites of one mean and what they know of each other; the last of them are those that are lost."""

    def __init__(self, sites: int, terms: MeanTerms, folder: Path, clock: Clock) -> None:
        self.terms, self.clock, self.subject = terms, clock, subject_of(terms, MODEL, AGREED)
        self.sites = [f"site-{number:02d}" for number in range(sites)]
        self.identities = {site: Identity(Ed25519PrivateKey.generate()) for site in self.sites}
        lock = {site: each.public for site, each in self.identities.items()}
        self.guards = {site: TimedGuard(folder / f"{site}.sqlite", site, clock) for site in self.sites}
        self.clients = {
            site: SumClient(terms.sum, site, self.identities[site], lock, self.subject, self.guards[site])
            for site in self.sites
        }

    def answer(
        self,
        site: str,
        order: frame.Frame,
        kind: type[Said],
        how: Callable[[SumClient, Said], BaseModel],
    ) -> frame.Frame:
        """Returns what a site answers to what the server says."""
        said = read_said(frame.decode(order, Plan).values, kind)
        return spoken(how(self.clients[site], said))

    def keys(self, site: str) -> frame.Frame:
        """Returns a site's keys."""
        return spoken(self.clients[site].keys())

    def masked(
        self, site: str, order: frame.Frame, update: Mapping[str, Tensor], base: Mapping[str, Tensor]
    ) -> frame.Frame:
        """Returns a site's masked input, as `client.secure_turns` makes it."""
        assert hash_of_frame(frame.encode(Plan(base))) == self.terms.plan  # noqa: S101 - a site checks it, too
        sharers = read_said(frame.decode(order, Plan).values, Sharers)
        number, client = self.sites.index(site), self.clients[site]
        own = Update(update, {"loss": 1.0}, weight=weight_of(number))
        summed = SummedUpdate(own, base, self.terms, Seed(number))
        # A site hashes the tensors of a plan a second time: it recognises them beside any other values.
        client.require_new(
            self.guards[site].trained_on("train", hash_of_frame(frame.encode(Plan(base)))), sharers
        )
        tensors = dict(client.mask(sharers, summed.elements()))
        return spoken(MaskedInput(sum=self.terms.sum, site=site), tensors)


def weight_of(number: int) -> float:
    return 10.0 + number


def spoken(said: BaseModel, tensors: Mapping[str, Tensor] | None = None) -> frame.Frame:
    return frame.encode(Update(tensors or {}, said_of(said)))


def ordered(said: BaseModel) -> frame.Frame:
    return frame.encode(Plan(values=said_of(said)))


def heard(sent: Sequence[frame.Frame], kind: type[Said]) -> list[Said]:
    """Returns what sites say."""
    return [read_said(frame.decode(each, Update).values, kind) for each in sent]


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
