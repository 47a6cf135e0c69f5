"""How the server merges what clients send."""
