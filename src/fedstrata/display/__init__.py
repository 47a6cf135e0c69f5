"""What a person sees while something runs: on a terminal, in a notebook, in a log."""
