"""Split learning: the client keeps the ends of a model, the server its middle (FL-LLaMA)."""
