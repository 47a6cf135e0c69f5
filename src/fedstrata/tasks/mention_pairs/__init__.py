"""Pairs of mentions that may be related."""
