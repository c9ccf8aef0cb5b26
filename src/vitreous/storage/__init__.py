"""Files and folders that are written whole or not at all, and by one process at a time."""
