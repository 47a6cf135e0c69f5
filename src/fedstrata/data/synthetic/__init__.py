"""A synthetic clinical corpus."""

from fedstrata.data.synthetic.corpus import generate
from fedstrata.data.synthetic.lexicon import icd9_titles

__all__ = ["generate", "icd9_titles"]
