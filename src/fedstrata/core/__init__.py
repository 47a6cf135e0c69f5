"""Types and protocols every other package builds on."""
