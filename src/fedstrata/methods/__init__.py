"""Federated methods: one method, one card."""
