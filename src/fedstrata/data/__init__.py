"""Documents: reading, writing, splitting and partitioning them."""
