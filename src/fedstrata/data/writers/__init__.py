"""Writers: one file a format, the counterparts of the readers."""
