"""Prompts: templates with fields, and what a causal language model reads before it answers, as tokens."""

import string
from collections.abc import Callable, Sequence
from functools import cache, cached_property
from importlib import resources
from pathlib import Path
from typing import Any

from fedstrata.core.documents import Document
from fedstrata.core.errors import Problem, refused
from fedstrata.tasks.causal import end_id
from fedstrata.tasks.texts import padding_id, require_offsets, separator_id

FIELDS_OF_TEMPLATE = ("the fields of task.template (superglue, jsonl ...)", "")
"""What a task reads of a document beyond its text whose template names more; see `Task.beyond_texts`."""
TEXTS_PER_CALL = 1024
"""Texts given to the tokenizer at a time."""
_SAME_DAY = "{% macro strftime_now(format) %}26 Jul 2024{% endmacro %}\n"
"""Stands before a chat template and writes nothing itself. One that writes today's date then writes this one,
Llama 3's own where it is told none: a prompt is the same on every day."""


class PromptTokenizer:
    """A tokenizer for prompts and for what follows them.

    Args:
        tokenizer: The model's.
        chats: Whether a prompt is the first turn of a chat, where the tokenizer has a template for chats.

    Attributes:
        pad_id: The token that rows are padded with.
    """

    def __init__(self, tokenizer: Any, *, chats: bool) -> None:
        self.tokenizer, self.pad_id = tokenizer, padding_id(tokenizer)
        self._chats = chats and bool(getattr(tokenizer, "chat_template", None))
        added = getattr(tokenizer, "added_tokens_decoder", {})
        self._special = {int(id_): token.content for id_, token in added.items() if token.special}

    def prompts(self, texts: Sequence[str]) -> list[list[int]]:
        """Returns the tokens of each prompt."""
        if self._chats:
            turns = [[{"role": "user", "content": text}] for text in texts]
            chats = self._written(turns, add_generation_prompt=True)
            if self._opens_thought:  # an answer is trained and expected outside of it
                chats = [f"{chat.rstrip()}\n\n</think>\n\n" for chat in chats]
            rows = self.ids(chats, split=False)  # the template has written special ones
            return [
                self._chat(chat, text) if any(token in text for token in self._special.values()) else row
                for chat, text, row in zip(chats, texts, rows, strict=True)
            ]
        # Of the special tokens those at the beginning belong to a prompt, and not one that ends it.
        end = separator_id(self.tokenizer)
        rows = self.ids(texts, special=True)
        return [row[:-1] if row and row[-1] == end else row for row in rows]

    def end(self, task: str) -> int:
        """Returns the token that ends an answer: in a chat that of a turn, which need not be that of a text.

        Args:
            task: The name of the task that needs it, for messages.

        Raises:
            ConfigurationError: The tokenizer has neither.
        """
        if self._chats:
            turns = [{"role": "user", "content": "Q"}, {"role": "assistant", "content": "AAA"}]
            (chat,) = self._written([turns])
            (after,) = self.ids([chat.rpartition("AAA")[2]], split=False)
            if (own := next((id_ for id_ in after if id_ in self._special), None)) is not None:
                return own
        return end_id(self.tokenizer, task)

    def _written(self, chats: list[list[dict[str, str]]], **options: bool) -> list[str]:
        """Returns chats as the tokenizer's template writes them, on whatever day that is."""
        try:
            template = _SAME_DAY + self.tokenizer.get_chat_template()
        except ValueError:  # there are several, of which none is the default
            message = "must be never: the tokenizer has several chat templates and no default"
            raise refused("task.chat", message, "conflict") from None
        written: list[str] = self.tokenizer.apply_chat_template(
            chats, chat_template=template, tokenize=False, enable_thinking=False, **options
        )
        return written

    @cached_property
    def _opens_thought(self) -> bool:
        """Whether the template begins an answer with a thought whatever it is told, as DeepSeek-R1's."""
        (chat,) = self._written([[{"role": "user", "content": "Q"}]], add_generation_prompt=True)
        return chat.rstrip().endswith("<think>")

    def _chat(self, chat: str, text: str) -> list[int]:
        """Returns the tokens of a chat whose text looks as if it had special ones."""
        before, found, after = chat.partition(text.strip())
        if not found:
            message = (
                "must be never: the tokenizer's chat template changes a text that looks like a special token"
            )
            raise refused("task.chat", message, "not_supported")
        ends = self.ids([before, after], split=False)
        return [*ends[0], *self.ids([found])[0], *ends[1]]

    def ids(self, texts: Sequence[str], *, special: bool = False, split: bool = True) -> list[list[int]]:
        """Returns the tokens of each text, without special ones unless they are asked for.

        What looks like a special token in a text is tokenized as any other characters, unless `split` is
        false: a note may well hold `</s>`, and nothing in it must end an answer or begin another turn.
        """
        ids: list[list[int]] = []
        for start in range(0, len(texts), TEXTS_PER_CALL):
            call = self.tokenizer(
                list(texts[start : start + TEXTS_PER_CALL]),
                add_special_tokens=special,
                split_special_tokens=split,
                return_attention_mask=False,
                return_token_type_ids=False,
                verbose=False,  # longer texts are cut later
            )
            ids += call["input_ids"]
        return ids

    def with_ends(self, texts: Sequence[str]) -> list[tuple[list[int], list[int]]]:
        """Returns the tokens of each text as `ids` gives them, and the character behind each token.

        Raises:
            ConfigurationError: The tokenizer gives no offsets.
        """
        require_offsets(self.tokenizer)
        if not texts:
            return []
        encoded = self.tokenizer(
            list(texts),
            add_special_tokens=False,
            split_special_tokens=True,
            return_offsets_mapping=True,
            return_attention_mask=False,
            return_token_type_ids=False,
            verbose=False,
        )
        offsets = ([end for _, end in row] for row in encoded["offset_mapping"])
        return list(zip(encoded["input_ids"], offsets, strict=True))

    def continuations(self, befores: Sequence[str], texts: Sequence[str]) -> list[list[int]]:
        """Returns the tokens of each text as they are behind another, as far as a tokenizer has such.

        SentencePiece tells the word that begins a text from one behind a blank by nothing but the blank
        before it, which it puts there itself: what stands before decides.

        Args:
            befores: What stands before each text.
            texts: The texts, with the blank that may be between the two.
        """
        lasts = [before[-1:] for before in befores]
        together = self.ids([last + text for last, text in zip(lasts, texts, strict=True)])
        alone = dict(zip(dict.fromkeys(lasts), self.ids(list(dict.fromkeys(lasts))), strict=True))
        rows = []
        for last, row, text in zip(lasts, together, texts, strict=True):
            own = alone[last]
            rows.append(row[len(own) :] if row[: len(own)] == own else self.ids([text])[0])
        return rows

    def shortened(
        self,
        prompt: list[int],
        document: Document,
        fill: Callable[[str], str],
        *,
        max_length: int,
        spared: int,
    ) -> list[int]:
        """Returns a prompt about as much of a document's text, from its beginning, as there is room for.

        Args:
            prompt: The tokens of the prompt about all of the text, which is returned if it fits.
            document: The document.
            fill: Returns the prompt about a text in place of the document's.
            max_length: Tokens that the prompt and an answer may have (`task.max_length`).
            spared: Those of an answer.

        Returns:
            Its tokens, at least one.

        Raises:
            ConfigurationError: The prompt is too long without any text; or the text must be cut, and the
                tokenizer does not say where its tokens end.
        """
        room = max_length - spared
        if len(prompt) > room:
            prompt = self._cut(prompt, document.text, fill, room)
        if not 0 < len(prompt) <= room:
            message = (
                f"{max_length} leaves {room} tokens besides an answer, and what is asked of document "
                f"{document.id!r} has {len(prompt)} without its text"
            )
            raise refused("task.max_length", message, "out_of_range")
        return prompt

    def _cut(self, prompt: list[int], text: str, fill: Callable[[str], str], room: int) -> list[int]:
        ((_, ends),) = self.with_ends([text])
        kept = len(ends)
        while len(prompt) > room and kept > 0:
            # Where a word is cut the tokens before the cut may become others, and more.
            kept = max(kept - (len(prompt) - room), 0)
            (prompt,) = self.prompts([fill(text[: ends[kept - 1]] if kept else "")])
        return prompt


def fields_of(template: str) -> list[str]:
    """Returns the fields that a template names, each once.

    Raises:
        ValueError: A brace of it is neither part of a field nor doubled.
    """
    names = (name for _, name, _, _ in string.Formatter().parse(template) if name is not None)
    return list(dict.fromkeys(names))


def holds_template(given: str, mark: str) -> bool:
    """Returns whether a setting holds a template itself, and not the path of one."""
    return f"{{{mark}}}" in given


def read_template(given: str, mark: str, path: str) -> str:
    """Returns a template of the user's own.

    Args:
        given: The path to a text file; or the template itself if it holds the field that every such template
            has.
        mark: That field, by which a template is told from the path of one.
        path: The setting it was given by, for messages.

    Raises:
        ConfigurationError: The file cannot be read.
    """
    if holds_template(given, mark):
        return given
    try:
        return Path(given).expanduser().read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        code = "unreadable"
        if isinstance(error, FileNotFoundError):
            code = "not_found"
        elif isinstance(error, UnicodeDecodeError):
            code = "not_utf8"
        raise refused(path, f"{given!r} cannot be read: {error}", code) from None


@cache
def builtin(name: str) -> str:
    """Returns a template that comes with the package."""
    return (resources.files("fedstrata.tasks") / "templates" / f"{name}.txt").read_text(encoding="utf-8")


def faults(path: str, template: str, mark: str, known: Sequence[str]) -> list[Problem]:
    """Returns what is wrong with a template.

    Args:
        path: The setting it was given by.
        template: The template.
        mark: The field that it must name.
        known: All fields that it may name.
    """
    fields = ", ".join(f"{{{name}}}" for name in known)
    try:
        names = fields_of(template)
    except ValueError as error:
        message = f"is no template: {error}; a brace of the text itself is written twice"
        return [Problem(path, message, code="wrong_form")]
    found = [
        Problem(path, f"names {{{name}}}; there are {fields}", code="unknown_name")
        for name in names
        if name not in known
    ]
    return found if mark in names else [*found, Problem(path, f"does not name {{{mark}}}", code="missing")]
