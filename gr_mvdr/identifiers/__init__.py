"""What a document is called: atomic docids, digits, paths of a cluster tree, titles."""
