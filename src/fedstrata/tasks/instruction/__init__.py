"""Instructions to a causal language model, and the reading of its answers."""
