"""What whoever looks after a run sees of it while it goes on; nothing here changes a run."""
