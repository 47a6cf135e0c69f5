"""What happens at a client, wherever that is."""
