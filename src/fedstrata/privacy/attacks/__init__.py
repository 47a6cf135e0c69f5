"""Attacks on what leaves a client: how much of its texts can be read back."""
