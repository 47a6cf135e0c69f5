"""The one client training loop, and evaluation."""
