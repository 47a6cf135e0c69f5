"""The engine: drives the rounds of a method, simulates clients, checkpoints."""
