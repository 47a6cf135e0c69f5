"""The server's keys and values while clients generate: several sessions in bounded memory.

Source: FL-LLaMA, section 3.4.2, collaborative key-value cache. After the prefill one token's hidden state
travels each way, whatever the length of the context. The client's caches for A and C are those that
`generate` of transformers makes.

The bound is on the bytes of all sessions together. When they have more, the one that was used the longest
time ago is forgotten; its client is told so with the next token, and opens the session again
(`fedstrata.split.ends` does this by itself). A session that alone would have more is refused before it is
computed. Within a call the memory can be larger by what the call adds.
Clients that together need more than the bound take turns in evicting each other: nothing fails, but every
token then costs a prefill.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import Cache, DynamicCache

from fedstrata.core.cut import Cut
from fedstrata.core.errors import (
    FrameError,
    SessionLostError,
    SessionTooLargeError,
    printable,
    refused,
)
from fedstrata.core.settings.training import TrainingSettings
from fedstrata.split.middle import Middle
from fedstrata.split.rows import Rows
from fedstrata.train.local import autocast

_SESSIONS = 1024
"""Sessions at most: beside its keys and values each takes some kilobytes, which `limit` does not count."""


@dataclass(slots=True)
class _Session:
    cache: Cache
    rows: Rows
    cut: Cut | None
    size: int


class Sessions:
    """All clients' sessions; implements `fedstrata.split.ends.Remote` for those in the same process.

    Args:
        middle: The server's side of the model.
        limit: Bytes of keys and values that all sessions may have together; there are 1024 at most.
        training: In what precision the middle computes, as in training; that of its weights if none.
    """

    def __init__(self, middle: Middle, limit: int, training: TrainingSettings | None = None) -> None:
        self._middle, self._limit, self._training = middle, limit, training
        self._token_bytes: dict[Cut | None, int] = {}
        self._sessions: dict[Hashable, _Session] = {}  # the one used last is the last

    @property
    def names(self) -> tuple[Hashable, ...]:
        """The sessions that are held, the one used the longest time ago first."""
        return tuple(self._sessions)

    @property
    def size(self) -> int:
        """Bytes of the keys and values of all sessions."""
        return sum(each.size for each in self._sessions.values())

    def run(self, states: Tensor, rows: Rows, cut: Cut | None = None) -> Tensor:
        """Returns what the middle gives for whole rows and keeps nothing; see `Middle.run`."""
        return self._run(states, rows, cut)

    def open(self, session: Hashable, states: Tensor, rows: Rows, cut: Cut | None = None) -> Tensor:
        """Begins a session with all that comes before the first new token.

        Args:
            session: Its name, unlike that of any other client's; one that is held is replaced.
            states: (rows, length, hidden).
            rows: The lengths of the rows; padding is on the left.
            cut: Where the client's model is cut, if elsewhere than the server's.

        Returns:
            (rows, length, hidden).

        Raises:
            SessionTooLargeError: It alone has more bytes than all may have.
            FrameError: The states do not fit the lengths, or padding is on the right.
            ConfigurationError: The architecture has no key-value cache, or as for `Middle.run`.
        """
        if not self._middle.keeps_cache:
            message = f"a {self._middle.inner.config.model_type} keeps no keys and values to go on from"
            raise refused("model.name", message, "not_supported")
        if any(rows.padding) and rows.side == "right":
            message = "the rows of a session must be padded on the left: they go on at the right"
            raise FrameError(message, code="wrong_padding")
        self.close(session)
        return self._go_on(session, states, rows, cut, self._cache())

    def extend(
        self, session: Hashable, states: Tensor, past: int, kept: Sequence[int] | None = None
    ) -> Tensor:
        """Goes on with a session.

        Args:
            session: Its name.
            states: What comes next, (rows, columns, hidden).
            past: How many columns the session is to have before; a step that is sent twice is noticed so.
            kept: The indices of the rows that go on, ascending; the session forgets the others. None: all.

        Returns:
            (rows, columns, hidden).

        Raises:
            SessionLostError: It is not held, or not with so many columns; it must be opened again.
            SessionTooLargeError: As for `open`.
            FrameError: The states do not fit the session, or `kept` does not.
        """
        held = self._sessions.get(session)
        if held is None:
            raise SessionLostError(f"session {session!r} is not held here; open it again")
        if held.rows.length != past:
            raise SessionLostError(
                f"session {session!r} has {held.rows.length} columns here, not {past}; open it again"
            )
        self.close(session)  # what fails half-way must not be gone on from
        rows = held.rows.longer(past + states.shape[1])
        if kept is not None:
            rows = rows.only(kept)
            held.cache.batch_select_indices(torch.tensor(kept, device=self._middle.model.device))
        return self._go_on(session, states, rows, held.cut, held.cache, past)

    def close(self, session: Hashable) -> None:
        """Forgets a session, if it is held."""
        self._sessions.pop(session, None)

    def _go_on(
        self, session: Hashable, states: Tensor, rows: Rows, cut: Cut | None, cache: Cache, past: int = 0
    ) -> Tensor:
        """Runs what comes behind `past` columns and keeps the session; the ones used long ago make room."""
        more = len(rows.padding) * (rows.length - past) * self._bytes_of_token(cut)
        self._require_room(session, cached_bytes(cache) + more)
        output = self._run(states, rows, cut, cache)
        size = cached_bytes(cache)
        self._require_room(session, size)
        self._sessions[session] = _Session(cache, rows, cut, size)
        while self.size > self._limit or len(self._sessions) > _SESSIONS:
            self.close(next(iter(self._sessions)))
        return output

    def _run(self, states: Tensor, rows: Rows, cut: Cut | None, cache: Cache | None = None) -> Tensor:
        if self._training is None:
            return self._middle.run(states, rows, cut, cache)
        with autocast(self._training, self._middle.model.device):
            return self._middle.run(states, rows, cut, cache)

    def _require_room(self, session: Hashable, size: int) -> None:
        if size > self._limit:
            name = "/".join(map(str, session)) if isinstance(session, tuple) else str(session)
            raise SessionTooLargeError(
                f"session {printable(name, 100)} has {size} bytes of keys and values, and all sessions "
                f"together may have {self._limit}; shorter texts, fewer rows (training.eval_batch_size) or "
                "more memory at the server (--cache-megabytes) may help"
            )

    def _cache(self) -> Cache:
        return DynamicCache(config=self._middle.inner.config.get_text_config(decoder=True))

    def _bytes_of_token(self, cut: Cut | None) -> int:
        """Returns the bytes of one token's keys and values, which are those of one token alone."""
        if cut not in self._token_bytes:
            cache, width = self._cache(), self._middle.inner.config.get_text_config().hidden_size
            self._run(torch.ones(1, 1, width), Rows(1, (0,)), cut, cache)
            self._token_bytes[cut] = cached_bytes(cache)
        return self._token_bytes[cut]


def cached_bytes(cache: Cache) -> int:
    """Returns the bytes that the tensors of a key-value cache keep alive.

    A layer with a sliding window holds views of what was computed last, which can be larger than they are.
    """
    tensors = (getattr(layer, name, None) for layer in cache.layers for name in ("keys", "values"))
    storages = [tensor.untyped_storage() for tensor in tensors if tensor is not None]
    return sum({each.data_ptr(): each.nbytes() for each in storages}.values())
