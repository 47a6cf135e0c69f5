"""What may be learnt from what travels."""
