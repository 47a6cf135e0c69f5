"""Scoring and generating through a server in another process: the client's questions, and who answers them.

The messages are those of training (`fedstrata.split.messages`), with hidden states both ways, and say also:

| value | |
|---|---|
| `ask` | `run`, `open`, `extend` or `close`, as the methods of `fedstrata.split.kvcache.Sessions`; `ends` |
| `session` | the session's name, unlike any other of this client |
| `past` | of `extend`: how many columns the session has |
| `kept` | of `extend`, where rows have ended: the indices of those that go on |
| `lost` | in an answer: that the session is no longer held |

A client that asks for `ends` is sent what was learnt of its part of the model, unless that is its own.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from torch import Tensor

from fedstrata.core.client import Line
from fedstrata.core.cut import Cut
from fedstrata.core.errors import FrameError, SessionLostError
from fedstrata.core.types import JSON, Message, Tensors
from fedstrata.split.kvcache import Sessions
from fedstrata.split.messages import ENDS, STATES, Form, cut_in, kind_of, number_in, numbers_in, pack, unpack
from fedstrata.split.rows import Rows

_NAME = 64
"""Characters that a session's name may have."""


class RemoteMiddle:
    """The server's middle at the other end of a line; implements `fedstrata.split.ends.Remote`.

    Args:
        line: The line.
        form: How hidden states travel.
        cut: Where the client's model is divided.
    """

    def __init__(self, line: Line, form: Form, cut: Cut) -> None:
        self._line, self._form, self._cut = line, form, cut

    def run(self, states: Tensor, rows: Rows) -> Tensor:
        """Returns what the middle gives for whole rows, (rows, length, hidden) to the same."""
        return self._ask("run", states, {"rows": rows.to_json()})

    def open(self, session: str, states: Tensor, rows: Rows) -> Tensor:
        """Does the same and keeps keys and values; a session of that name is replaced."""
        return self._ask("open", states, {"rows": rows.to_json(), "session": session})

    def extend(self, session: str, states: Tensor, past: int, kept: Sequence[int] | None = None) -> Tensor:
        """Goes on behind `past` columns with the rows `kept`, (rows, columns, hidden) to the same.

        Raises:
            SessionLostError: The server does not hold the session with so many columns.
        """
        values: dict[str, JSON] = {} if kept is None else {"kept": list(kept)}
        return self._ask("extend", states, {"past": past, "session": session, **values})

    def ends(self) -> Tensors:
        """Returns what was learnt of the client's own part of the model, by name."""
        answer = self._asked(Message({}, {"kind": ENDS, "ask": "ends"}))
        if kind_of(answer) != ENDS:
            message = f"the server says {kind_of(answer)} in place of the client's part of the model"
            raise FrameError(message, code="out_of_order")
        return answer.tensors

    def close(self, session: str) -> None:
        """Forgets a session, if there is one; there is no answer."""
        self._line.send(Message({}, {"kind": STATES, "ask": "close", "session": session}))

    def _ask(self, ask: str, states: Tensor, values: dict[str, JSON]) -> Tensor:
        cut: list[JSON] = [self._cut.front, self._cut.back]
        answer = self._asked(pack(STATES, states, self._form, {"ask": ask, "cut": cut, **values}))
        if answer.values.get("lost"):
            raise SessionLostError("the server no longer holds the session; open it again")
        if (found := unpack(answer, self._form)) is None:
            raise FrameError("the server answers without hidden states", code="missing")
        return found

    def _asked(self, question: Message) -> Message:
        """Returns the server's answer."""
        self._line.send(question)
        return self._line.receive()


@dataclass
class Answering:
    """The server's half while clients score or generate; implements `core.cohort.Service`.

    Attributes:
        sessions: The middle, with the keys and values of sessions.
        form: How hidden states travel.
        cut_of: Returns where a client's model is divided.
        ends_of: Returns what was learnt of the part of the model that is a client's; none where clients have
            it already.
        most: How often each client may ask; as often as it likes if none.
        together: Clients ask at once, and each is answered at once.
        ordered: None waits for another.
    """

    sessions: Sessions
    form: Form
    cut_of: Callable[[str], Cut]
    ends_of: Callable[[str], Tensors] | None = None
    most: Mapping[str, int] | None = None
    _asked: Counter[str] = field(default_factory=Counter)
    together: ClassVar[bool] = True
    ordered: ClassVar[bool] = False

    def hear(self, client: str, message: Message) -> Iterator[tuple[str, Message]]:
        """Answers a question.

        Raises:
            FrameError: It is none.
        """
        self._asked[client] += 1
        if self.most is not None and self._asked[client] > self.most[client]:
            told = f"what client {client!r} said of its documents needs {self.most[client]} questions at most"
            raise FrameError(f"{told}, and here is one more", code="out_of_range")
        ask, session = message.values.get("ask"), message.values.get("session")
        if not isinstance(session, str | None):
            raise FrameError(
                f"a session is called by a {type(session).__name__}, not by a text", code="wrong_type"
            )
        if len(session or "") > _NAME:
            told = f"a session's name has {len(session or '')} characters; it may have {_NAME}"
            raise FrameError(told, code="out_of_range")
        name = (client, session)
        if ask == "close":
            self.sessions.close(name)
            return
        if ask == "ends" and self.ends_of is not None:
            yield client, Message(self.ends_of(client), {"kind": ENDS})
            return
        if (states := unpack(message, self.form)) is None:
            raise FrameError(f"client {client!r} asks without hidden states", code="missing")
        try:
            yield client, pack(STATES, self._answer(ask, name, states, message), self.form, {})
        except SessionLostError:
            yield client, Message({}, {"kind": STATES, "lost": True})

    def leave(self, client: str, *, lost: bool = False) -> Iterator[tuple[str, Message]]:
        """Forgets the client's sessions."""
        for name in self.sessions.names:
            if isinstance(name, tuple) and name[0] == client:
                self.sessions.close(name)
        yield from ()

    def _answer(self, ask: JSON, name: tuple[str, str | None], states: Tensor, message: Message) -> Tensor:
        if ask == "extend":
            return self.sessions.extend(name, states, number_in(message, "past"), numbers_in(message, "kept"))
        rows = message.values.get("rows")
        if ask not in ("run", "open") or not isinstance(rows, dict):
            raise FrameError(
                f"a question is {ask!r} with rows {rows!r}, which is none that is known", code="unknown_name"
            )
        lengths, cut = Rows.from_json(rows), cut_in(message, self.cut_of(name[0]))
        if ask == "run":
            return self.sessions.run(states, lengths, cut)
        return self.sessions.open(name, states, lengths, cut)
