"""A client that generates, or scores, with the middle that a server holds: `fedstrata split generate`.

A and C run here, first for the whole prompt and then for one token at a time; the server does the same with
the middle (FL-LLaMA, section 3.4.2). Tokens and texts stay here. Where the server has forgotten a
session, or has been started anew, the client sends again what it had sent, and goes on as if nothing had
happened.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from fedstrata.client.store import ClientStore, client_folder, home_of
from fedstrata.core.cut import Cut
from fedstrata.core.documents import Document
from fedstrata.core.errors import (
    LineError,
    SessionLostError,
    SessionOverError,
    refused,
)
from fedstrata.core.files import private_folder
from fedstrata.core.seeding import Seed
from fedstrata.core.types import Message
from fedstrata.engine.check import divided_method
from fedstrata.engine.prepare import Experiment
from fedstrata.engine.remote.agreeing import ANSWERS, agreement_of, held
from fedstrata.privacy.ledger import Ledger, Turn
from fedstrata.split.ends import Ends
from fedstrata.split.inference import RemoteMiddle
from fedstrata.split.messages import Form
from fedstrata.tasks.continuations import generate
from fedstrata.tasks.instruction.examples import Example, answer_text, answered, pad_examples
from fedstrata.tasks.instruction.prompts import PromptTokenizer
from fedstrata.train.evaluate import answer, batches_by_length
from fedstrata.train.local import autocast, to_device
from fedstrata.transport.membership import Membership, TurnLine
from fedstrata.wire import frame

Join = Callable[[], "Membership"]
TURN = 0
"""The one turn of a client that takes part in no round."""
USUAL_TOKENS = 128
"""Tokens that an answer to a prompt may have, if nobody says otherwise."""


class Generating:
    """A client.

    Args:
        experiment: What `prepare_client` or `prepare_prompts` gave.
        client: Its name.
        home: Where it keeps its store, if its ends are its own.
        prompts: What is to be continued; none for the test documents of its data, by the prompts of its task.
        tokens: How many an answer may have; what the task allows, or `USUAL_TOKENS`, if none.
        temperature: Logits are divided by it before a token is drawn; 0 takes the likeliest.
        advance: Told how many more rows are done.

    Attributes:
        agreement: What it takes as agreed with the server.
        greeting: What else it says of itself.
        scores: Of answers to documents, once there are any.

    Raises:
        ConfigurationError: There is nothing to answer, a prompt is too long for the model, the client has no
            store, or a setting has no meaning here.
    """

    def __init__(
        self,
        experiment: Experiment,
        client: str,
        home: Path,
        prompts: Sequence[Document] | None,
        *,
        tokens: int | None = None,
        temperature: float = 0.0,
        advance: Callable[[int], None] = lambda count: None,
    ) -> None:
        self._experiment, self.id, self._home = experiment, client, home
        self._tokens, self._temperature, self._advance = tokens, temperature, advance
        self._method, self._model = divided_method(experiment.method), experiment.model
        self._cut = self._method.divides(client)
        self._seed = experiment.seed.child("answers", client)
        self.scores: Mapping[str, float] = {}
        self._prompts = prompts
        self._documents = prompts if prompts is not None else self._own_documents()
        if not self._documents:
            raise refused("--prompts", "there is nothing to answer", "missing")
        self._examples = self._encoded()
        training = experiment.settings.training
        windows = max(len(example.windows) for example in self._examples)
        longest = (getattr(example, "scored_length", 0) for example in self._examples)
        length = max(experiment.task.max_length, *longest)
        rows = windows * min(training.eval_batch_size, len(self._examples))
        self.agreement = agreement_of(experiment, client, rows, length, ANSWERS)
        self.greeting: Mapping[str, Any] = {"rows": rows, "length": length, **held(experiment)}
        if self._method.personal:
            self._require_store()

    def run(self, join: Join) -> list[Document]:
        """Returns the documents with their answers, in order; a prompt's is its second text.

        Args:
            join: Makes a session at the server, which is not entered yet.

        Raises:
            LineError: The server can no longer be reached.
            RefusedError: It does not take this client, or what it asks.
        """
        private_folder(self._home)  # what it keeps there is nobody else's
        greeting = Message({}, {**self.greeting, "facts": dict(self.agreement.facts)})
        with self._ledger(None) as ledger:
            ledger.append("greeting", greeting, frame.encode(greeting))
        with Lasting(join, self._method.wire, self._cut, self._ledger) as middle:
            self._take_over(middle)
            noise = self._method.noise_of(Seed(secrets.randbits(63)))
            with Ends(self._model, self._cut).connected(middle, "answers", noise):
                return self._prompted() if self._prompts is not None else self._scored()

    def _ledger(self, run: object) -> Ledger:
        """Returns what takes down what is sent to the server of this run's model."""
        folder = client_folder(home_of(self._home, run), self.id)
        return Ledger(folder, Turn(self.id, run if isinstance(run, str) else None), durable=True)

    def _take_over(self, middle: Lasting) -> None:
        """Loads what was learnt of the ends: the client's own, or the run's."""
        if not self._method.personal:
            self._model.load(middle.ends())
            return
        folder = client_folder(home_of(self._home, middle.id), self.id)
        kept = ClientStore(folder, middle.committed).read().tensors
        if not kept:
            message = f"{folder} holds nothing of round {middle.committed} or before, which the server has"
            raise refused("--home", message, "not_found")
        self._model.load_known(kept)

    def _prompted(self) -> list[Document]:
        """Continues the prompts."""
        found = []
        for document, example, ids in zip(
            self._documents, self._examples, self._generated(self._examples, "prompts"), strict=True
        ):
            text, finished = answer_text(example, ids)
            facts = {"tokens": str(len(ids)), "finished": "yes" if finished else "no"}
            found.append(replace(document, text_pair=text, metadata={**document.metadata, **facts}))
        return found

    def _scored(self) -> list[Document]:
        """Answers the documents as for the scores of a run, and scores the answers."""
        task, documents = self._experiment.task, self._documents
        if task.generates:
            rows = self._generated(self._examples, *task.gives)
            answers: list[Any] = [*task.decode(documents, self._examples, rows)]
        else:
            answers = answer(self._model, task, documents, self._experiment.settings.training)
            self._advance(len(documents))
        self.scores = task.score(documents, answers)
        return [task.annotate(document, own) for document, own in zip(documents, answers, strict=True)]

    def _generated(self, examples: Sequence[Example], *purpose: str) -> list[np.ndarray]:
        """Returns the tokens that follow each prompt, (tokens,) int32."""
        module, training = self._model.module.train(False), self._experiment.settings.training
        found: list[Any] = [None] * len(examples)
        for number, chosen in enumerate(batches_by_length(examples, training.eval_batch_size)):
            batch = to_device(pad_examples([examples[index] for index in chosen]), self._model.device)
            with autocast(training, self._model.device):
                rows = generate(
                    module,
                    batch,
                    temperature=self._temperature,
                    seed=self._seed.child(*purpose, number) if self._temperature else None,
                )
            for index, row in zip(chosen, rows, strict=True):
                found[index] = row
            self._advance(len(chosen))
        return found

    def _own_documents(self) -> list[Document]:
        """Returns the client's test documents that answers can be scored against."""
        if self.id not in self._experiment.clients:
            named = ", ".join(self._experiment.clients)
            message = f"the data has no client {self.id!r}; it has: {named}"
            raise refused("--client", message, "unknown_name")
        task = self._experiment.task
        if not task.generates and (self._tokens is not None or self._temperature):
            message = f"have no meaning with task {task.name}, which generates nothing"
            raise refused("--max-new-tokens, --temperature", message, "no_effect")
        return [each for each in self._experiment.clients[self.id].test if task.scorable(each)]

    def _encoded(self) -> list[Any]:
        """Returns examples of the documents, or of the prompts that they are."""
        if self._prompts is not None:
            return self._continued(self._prompts)
        examples = self._experiment.task.encode(self._documents, self._model.tokenizer)
        if self._tokens is None:
            return list(examples)
        return [replace(example, budget=min(example.budget, self._tokens)) for example in examples]

    def _continued(self, documents: Sequence[Document]) -> list[Example]:
        """Makes examples of prompts.

        Raises:
            ConfigurationError: One of them is too long for the model with its answer.
        """
        tokenizer = self._model.tokenizer
        words = PromptTokenizer(tokenizer, chats=self._experiment.task.chats)
        end, budget = words.end("generate"), self._tokens or USUAL_TOKENS
        rows = words.prompts([document.text for document in documents])
        config: Any = self._model.module.config
        positions = getattr(config.get_text_config(), "max_position_embeddings", None)
        for document, row in zip(documents, rows, strict=True):
            if not row or (positions is not None and len(row) + budget > positions):
                message = f"prompt {document.id!r} has {len(row)} tokens; at least 1, and with {budget} more "
                message += f"(--max-new-tokens) at most {positions}, the positions the model knows"
                raise refused("--prompts", message, "out_of_range")
        return [
            answered(index, row, [end], words, end=end, budget=budget, on_prompts=False)
            for index, row in enumerate(rows)
        ]

    def _require_store(self) -> None:
        """Refuses a home in which there is nothing of any run; of which one it is, the server will say."""
        homes = (self._home, *self._home.glob("run-*"))
        if not any(any(client_folder(home, self.id).glob("store-*.safetensors")) for home in homes):
            message = f"{self._home} holds nothing of client {self.id!r}, which keeps its ends to itself"
            raise refused("--home", message, "not_found")


class Lasting(RemoteMiddle):
    """The server's middle for as long as there is a server.

    When the server ends the session the client joins again. A session of keys and values is then lost, and
    made up for as any other.

    Args:
        join: Makes a session at the server.
        form: How hidden states travel.
        cut: Where the client's model is divided.
        ledger_of: Returns what takes down what is sent, given the id of the run.

    Attributes:
        committed: The round of the run whose weights the server has.
        id: The id of the run; none if it has none.
    """

    def __init__(self, join: Join, form: Form, cut: Cut, ledger_of: Callable[[object], Ledger]) -> None:
        self._join, self._form, self._cut, self._ledger_of = join, form, cut, ledger_of
        self._stack = ExitStack()
        self.committed: int = -1
        self.id: object = None

    def __enter__(self) -> Lasting:
        self._enter()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _enter(self) -> None:
        membership = self._stack.enter_context(self._join())
        committed: Any = membership.welcome.get("committed")
        if self.committed not in (-1, committed):
            message = f"the server now has round {committed} of the run, and not {self.committed}"
            raise LineError(message, code="changed")
        self.committed, self.id = committed, membership.welcome.get("run")
        ledger = self._stack.enter_context(self._ledger_of(self.id))
        self._line = ledger.line(TurnLine(membership, TURN))

    def close(self, session: str) -> None:
        """Forgets a session, if there is one and a server."""
        with suppress(LineError):
            super().close(session)

    def _asked(self, question: Message) -> Message:
        """Returns the answer of the server, or of the one that has come in its place.

        Raises:
            SessionLostError: The session that was to go on was that of a server that is no longer there.
        """
        while True:
            try:
                return super()._asked(question)
            except SessionOverError:
                self._stack.close()
                self._enter()
            if question.values["ask"] == "extend":
                raise SessionLostError("the server was started anew; open the session again")
