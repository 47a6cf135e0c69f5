"""Readers: one file a format, each giving documents with exact character offsets."""
