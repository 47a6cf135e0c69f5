"""Writes a note from left to right and keeps the offsets of everything that is annotated."""

from fedstrata.core.documents import MENTION_TYPES, MODIFIERS_OF, Relation, Span
from fedstrata.data.synthetic.draw import Draw
from fedstrata.data.synthetic.style import HouseStyle

_CLOSING = frozenset(",.;:)")
_TYPO_LENGTH = 6


_Scope = tuple[list[int], list[int]]
"""The indices of the mentions and of the modifiers in a part of a sentence."""


class NoteBuilder:
    """Appends text; the offsets of spans are counted as it grows, never searched for afterwards.

    House style (casing, spelling, clipped words, line width) and typing errors are applied to each piece
    before it is counted.

    Args:
        style: The house style of the site.
        draw: Where typing errors come from.
    """

    def __init__(self, style: HouseStyle, draw: Draw) -> None:
        self._style, self._draw = style, draw
        self._pieces: list[str] = []
        self._length = self._line_start = 0
        self._gap = False
        self._capital = True
        self._open = 0
        self._spans: list[Span] = []
        self._relations: list[Relation] = []
        self._scopes: list[_Scope] = [([], [])]

    def __len__(self) -> int:
        return self._length

    def text(self, text: str) -> None:
        """Appends plain text; spaces at its ends collapse with their neighbours'."""
        stripped = text.strip(" ")
        if text[:1] == " ":
            self._gap = True
        if not stripped:
            return
        trailing = text[-1] == " "
        if self._style.width and not self._open and " " in stripped:
            for word in stripped.split(" "):
                self._append(self._style.rewrite(word))
                self._gap = True
        else:
            self._append(self._style.rewrite(stripped))
        self._gap = trailing

    def line(self, text: str = "") -> None:
        """Ends the current line, if it holds anything, and appends text that house style leaves as it is."""
        if self._length > self._line_start:
            self._raw("\n")
        self._line_start = self._length
        self._gap, self._capital = False, True
        if text:
            self._raw(text)
            self._gap = True

    def paragraph(self) -> None:
        """Leaves an empty line."""
        self.line()
        if self._length:
            self._raw("\n")
            self._line_start = self._length

    def begin(self) -> int:
        """Starts a span; returns what `end` needs."""
        self._flush_gap("")
        self._open += 1
        return self._length

    def end(self, start: int, label: str) -> bool:
        """Ends a span.

        Args:
            start: What `begin` returned.
            label: A mention type or a modifier type.

        Returns:
            Whether there is a span: whether anything was written since `begin`.
        """
        self._open -= 1
        if self._length == start:
            return False
        mentions, modifiers = self._scopes[-1]
        (mentions if label in MENTION_TYPES else modifiers).append(len(self._spans))
        self._spans.append(Span(start, self._length, label))
        return True

    def push(self) -> None:
        """Opens a scope."""
        self._scopes.append(([], []))

    def pop(self) -> None:
        """Closes a scope: its modifiers modify its mentions; what fits none passes to the scope around."""
        (mentions, modifiers), (outer_mentions, outer_modifiers) = self._scopes.pop(), self._scopes[-1]
        for modifier in modifiers:
            label = self._spans[modifier].label
            heads = [head for head in mentions if label in MODIFIERS_OF[self._spans[head].label]]
            self._relations.extend(Relation(head, modifier, label) for head in heads)
            if not heads:
                outer_modifiers.append(modifier)
        outer_mentions.extend(mentions)

    def finish(self) -> tuple[str, tuple[Span, ...], tuple[Relation, ...]]:
        """Returns the text, its spans in order, and their relations.

        Raises:
            ValueError: A modifier was written that modifies nothing: the grammar is wrong there.
        """
        _, modifiers = self._scopes[0]
        if loose := sorted({self._spans[index].label for index in modifiers}):
            raise ValueError(f"the grammar wrote modifiers without a mention: {', '.join(loose)}")
        order = sorted(range(len(self._spans)), key=lambda index: (self._spans[index].start, index))
        place = {old: new for new, old in enumerate(order)}
        relations = (Relation(place[item.head], place[item.tail], item.label) for item in self._relations)
        return "".join(self._pieces), tuple(self._spans[index] for index in order), tuple(sorted(relations))

    def _append(self, text: str) -> None:
        self._flush_gap(text[0])
        if self._capital and text[0].isalpha():
            if self._style.casing == "sentence":
                text = text[0].upper() + text[1:]
            self._capital = False
        if len(text) >= _TYPO_LENGTH and self._draw.chance(self._style.slips):
            at = self._draw.between(1, len(text) - 3)
            # Two neighbouring letters change places: that keeps the length and the word's ends.
            if text[at : at + 2].isalpha():
                text = text[:at] + text[at + 1] + text[at] + text[at + 2 :]
        self._raw(text)
        if text[-1] in ".!?" and not self._open:
            self._capital = True

    def _flush_gap(self, following: str) -> None:
        if not self._gap:
            return
        if following not in _CLOSING and self._length > self._line_start:
            full = self._style.width and self._length - self._line_start >= self._style.width
            if full and not self._open:
                self._raw("\n")
                self._line_start = self._length
            else:
                self._raw(" ")
        self._gap = False

    def _raw(self, text: str) -> None:
        self._pieces.append(text)
        self._length += len(text)
