"""Files that are whole or not there, and files that may come from anyone."""
