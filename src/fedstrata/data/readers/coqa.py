"""CoQA (Reddy et al., TACL 2019): conversations about a passage, as they are published, one JSON object.

    {"data": [{"id": "3zotghdk5", "source": "mctest", "story": "Once upon a time ...",
               "questions": [{"turn_id": 1, "input_text": "What color was Cotton?"}, ...],
               "answers": [{"turn_id": 1, "input_text": "white", ...}, ...],
               "additional_answers": {"0": [{"turn_id": 1, "input_text": "white", ...}, ...], ...}}]}

A document is one question, for task `summarize`: its text is the passage, its second text the answer. Its
`metadata` hold the `question`, the `history` (the turns before it as "Q: ..." and "A: ..." lines, empty in
the first one), the `source`, which is its label, and as `answer2`, `answer3` ... what other people answered,
where the file says so (`right_answers`). All questions about a passage are one `patient`, so that a split
does not part them.
"""

from collections.abc import Iterator, Mapping
from itertools import count, takewhile

from fedstrata.core.documents import Document
from fedstrata.core.errors import DataError
from fedstrata.data.readers.files import Format, Source, read_text
from fedstrata.data.readers.jsonl import PartRecord, parse_line

QUESTION, HISTORY = "question", "history"
"""The names, in a document's metadata, of what is asked and of the turns before it."""


class _Turn(PartRecord):
    turn_id: int
    input_text: str


class _Conversation(PartRecord):
    id: str
    source: str
    story: str
    questions: tuple[_Turn, ...]
    answers: tuple[_Turn, ...] = ()
    additional_answers: Mapping[str, tuple[_Turn, ...]] = {}


class _File(PartRecord):
    data: tuple[_Conversation, ...]


def right_answers(document: Document) -> list[str]:
    """Returns all right answers to a document's question: its second text, and what others have answered.

    >>> right_answers(Document("a", "It is white.", text_pair="white", metadata={"answer2": "It is white"}))
    ['white', 'It is white']
    """
    names = takewhile(document.metadata.__contains__, (f"answer{number}" for number in count(2)))
    return [document.text_pair or "", *(document.metadata[name] for name in names)]


def read(source: Source) -> Iterator[Document]:
    """Reads one file.

    Yields:
        A document for each question, called by its conversation and the number of its turn. Of a question
        without an answer the second text is none.

    Raises:
        DataError: It is not of this form, or turns of a conversation are not those that were asked.
    """
    for conversation in parse_line(_File, source.path, None, read_text(source.path)).data:
        yield from _questions(conversation, source)


def _questions(conversation: _Conversation, source: Source) -> Iterator[Document]:
    turns = [turn.turn_id for turn in conversation.questions]
    given = (conversation.answers, *conversation.additional_answers.values())
    for answers in filter(None, given):
        if [turn.turn_id for turn in answers] != turns:
            message = "the answers of a conversation are not of the turns that were asked, in their order"
            raise DataError(
                source.path, message, expected=f"{len(turns)} answers to as many questions", code="conflict"
            )
    history: list[str] = []
    for place, turn in enumerate(conversation.questions):
        right = [own[place].input_text.strip() for own in given if own]
        others = {f"answer{number}": text for number, text in enumerate(filter(None, right[1:]), start=2)}
        question = turn.input_text.strip()
        metadata = {
            "patient": conversation.id,
            "source": conversation.source,
            QUESTION: question,
            HISTORY: "".join(history),
            **others,
        }
        labels = (conversation.source,) if conversation.source else ()
        name, answer = f"{conversation.id}-{turn.turn_id}", right[0] if right else None
        yield Document(name, conversation.story, labels=labels, metadata=metadata, text_pair=answer)
        history.append(f"Q: {question}\nA: {answer or ''}\n")


FORMAT = Format(read, suffixes=(".json", ".json.gz"))
