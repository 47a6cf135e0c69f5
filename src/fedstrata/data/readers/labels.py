"""Labels in formats whose types may hold no white space (BRAT, CoNLL).

They are written with `_` for every blank. Reading gives the written label back, except where it spells one of
the clinical vocabulary's own labels: `body_location` is read as `body location`; `Lab_value` stays as it is.
"""

from fedstrata.core.documents import MENTION_TYPES, MODIFIER_TYPES


def label_to_file(label: str) -> str:
    """Returns the label with `_` in place of white space."""
    return "_".join(label.split())


_VOCABULARY = {label_to_file(label): label for label in (*MENTION_TYPES, *MODIFIER_TYPES)}


def label_from_file(label: str) -> str:
    """Returns the label that a file's type stands for."""
    return _VOCABULARY.get(label, label)
