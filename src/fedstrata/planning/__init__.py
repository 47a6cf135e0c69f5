"""Preflight: what a run will send, need and take, measured in a rehearsal before it starts."""
