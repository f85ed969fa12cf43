"""One reader for each file format, each returning a Collection."""
