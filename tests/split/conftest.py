"""Tiny random models of every family, and a tiny tokenizer."""

from tiny_models import saved, settings_of, tiny_model, tokenizer_folder, variant

__all__ = ["saved", "settings_of", "tiny_model", "tokenizer_folder", "variant"]
