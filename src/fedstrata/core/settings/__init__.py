"""The settings of a run, one file a section; where each value came from; sweeps."""
