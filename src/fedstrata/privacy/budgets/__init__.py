"""What may be learnt of each patient of a site over all runs: what was spent, and whether a run may begin."""
