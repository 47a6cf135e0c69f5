"""Which mentions and modifiers an extraction asks for: those that are named, or those of a corpus."""

import logging
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain

from fedstrata.core.documents import Document
from fedstrata.core.errors import Problem, did_you_mean, refuse
from fedstrata.data.select import related_types, types_of, unknown_types
from fedstrata.data.split import Split, every
from fedstrata.tasks.instruction.instructions import DEFINITIONS, AskingTask
from fedstrata.tasks.instruction.markup import unusable_types
from fedstrata.tasks.instruction.prompts import fields_of

logger = logging.getLogger(__name__)


def types_in(wanted: AskingTask, clients: Mapping[str, Split]) -> tuple[list[str], dict[str, list[str]]]:
    """Returns the mentions and modifiers that are asked for: `auto` are those of all training documents.

    Args:
        wanted: The task.
        clients: The documents of each client, and of sites that are held out, with all their relations.

    Raises:
        ConfigurationError: There is nothing to be asked for, a name occurs nowhere or cannot stand in markup,
            a document that is scored has a type that no training document has, a client has nothing to
            learn from, a definition is given by no template, or one of these cannot be used.
    """
    train = every(clients, "train")
    modifiers = related_types(train, by_relation=True) if wanted.modifiers == "auto" else wanted.modifiers
    mentions = _mention_types(train, modifiers) if wanted.mentions == "auto" else list(wanted.mentions)
    problems = [*_nothing(wanted, mentions, modifiers, len(train)), *_misnamed(wanted, clients)]
    problems += _idle_definitions(wanted)
    names = {*mentions, *modifiers, *chain.from_iterable(modifiers.values())}
    if unusable := unusable_types(sorted(names)):
        message = f"the type {unusable[0]!r} cannot stand in markup; rename it by data.types"
        problems.append(Problem("task.mentions", message, code="wrong_form"))
    for part in ("validation", "test"):
        scored = every(clients, part)
        if "ner" in wanted.tasks and wanted.mentions == "auto":
            problems += unknown_types(scored, "spans", types_of(train, "spans"), part)
        if "re" in wanted.tasks and wanted.modifiers == "auto":
            problems += unknown_types(scored, "relations", types_of(train, "relations"), part)
            _tell_of_other_pairs(scored, modifiers, part)
    if not problems and "ner" not in wanted.tasks:
        problems += _untaught(clients, modifiers)
    refuse(problems)
    return mentions, modifiers


def _mention_types(documents: Sequence[Document], modifiers: Mapping[str, Sequence[str]]) -> list[str]:
    """Returns the types of spans but for those that only modify, sorted: no relation has one as its main."""
    only_modify = {
        document.spans[relation.tail].label for document in documents for relation in document.relations
    }
    return [label for label in types_of(documents, "spans") if label not in only_modify or label in modifiers]


def _nothing(
    wanted: AskingTask, mentions: Sequence[str], modifiers: Mapping[str, Sequence[str]], count: int
) -> Iterator[Problem]:
    """Yields a problem for each kind of instruction that has nothing to ask for."""
    if "ner" in wanted.tasks and not mentions:
        yield Problem(
            "task.mentions",
            f"'auto' finds no mention in the {count} training documents",
            code="nothing_to_learn",
        )
    if "re" in wanted.tasks and not any(modifiers.values()):
        nothing = f"'auto' finds no relation in the {count} training documents"
        message = nothing if wanted.modifiers == "auto" else "names no modifier"
        yield Problem(
            "task.modifiers",
            f"{message}; task.tasks: [ner] asks for mentions only",
            code="nothing_to_learn" if wanted.modifiers == "auto" else "missing",
        )


def _misnamed(wanted: AskingTask, clients: Mapping[str, Split]) -> Iterator[Problem]:
    """Yields a problem for each name that neither the data nor a definition knows: it is likely misspelt.

    A few notes of a new site need not hold every type that a model was trained for.
    """
    documents = every(clients)
    mentions, relations = types_of(documents, "spans"), types_of(documents, "relations")
    mains, modified = wanted.asked_mentions, [*wanted.asked_modifiers]
    types = list(chain.from_iterable(wanted.asked_modifiers.values()))
    asked = {*mains, *modified, *types}
    defined = {*DEFINITIONS, *wanted.definitions}
    for setting, names, known in (
        ("mentions", mains, {*mentions, *defined}),
        ("modifiers", modified, {*mentions, *defined}),
        ("modifiers", types, {*relations, *defined}),
        ("definitions", [*wanted.definitions], {*mentions, *relations, *DEFINITIONS, *asked}),
    ):
        for name in dict.fromkeys(name for name in names if name not in known):
            hint = did_you_mean(name, known) or f"there are {', '.join(sorted(known))}."
            say = "" if setting == "definitions" else " If it is meant, say in task.definitions what it is"
            yield Problem(
                f"task.{setting}", f"{name!r} occurs nowhere in the data; {hint}{say}", code="unknown_name"
            )


def _idle_definitions(wanted: AskingTask) -> Iterator[Problem]:
    """Yields a problem for each built-in definition that is changed and that no instruction gives.

    That of another type says, if nothing else, that the type is meant.
    """
    if any("definitions" in fields_of(text) for text in wanted.template_texts.values()):
        return
    for name in wanted.definitions:
        if name in DEFINITIONS:
            message = f"no instruction gives that of {name!r}: none of task.templates has a place for"
            yield Problem("task.definitions", f"{message} {{definitions}}", code="no_effect")


def _tell_of_other_pairs(
    documents: Sequence[Document], modifiers: Mapping[str, Sequence[str]], part: str
) -> None:
    """Logs how many relations are of a type of mention that no training document has them with."""
    pairs = [
        (document.spans[relation.head].label, relation.label)
        for document in documents
        for relation in document.relations
    ]
    if others := [pair for pair in pairs if pair[1] not in modifiers.get(pair[0], ())]:
        first = " of ".join(reversed(others[0]))
        what = f"{len(others)} of {len(pairs)} relations of {part} documents are between types"
        why = f"that no training document relates, such as {first}: they are not asked for and not scored"
        logger.warning("task.modifiers: %s %s", what, why)


def _untaught(clients: Mapping[str, Split], modifiers: Mapping[str, Sequence[str]]) -> Iterator[Problem]:
    """Yields a problem for each client that trains and has no mention whose modifiers somebody looked for."""
    why = "with [ner, re] it learns mentions, and [re] leaves it nothing"
    for client, own in clients.items():
        looked = (
            any(each.looked_for(modifiers.get(span.label, ())))
            for each in own.train
            if not each.lacks_relations
            for span in each.spans
        )
        if own.train and not any(looked):
            message = f"the training documents of {client} have no mention whose modifiers are annotated"
            yield Problem("task.tasks", f"{message}; {why}", code="nothing_to_learn")
