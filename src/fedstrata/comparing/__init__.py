"""Several runs side by side on the same data and seeds."""
