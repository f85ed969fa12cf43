"""Document identifiers: atomic docids, digits, paths in a cluster tree, titles."""
