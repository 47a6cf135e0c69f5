"""Attacks on whole runs of the real engine: what leaves clients, seen with a server's eyes."""
