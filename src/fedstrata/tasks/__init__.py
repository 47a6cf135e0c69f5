"""Tasks: how documents become tensors, losses and scores."""
