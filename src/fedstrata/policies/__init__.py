"""Which blocks train, run, travel and are merged."""
