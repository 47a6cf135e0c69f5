"""A finished run in use: its model, predictions, an export with a card."""
