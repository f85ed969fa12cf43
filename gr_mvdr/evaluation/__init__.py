"""Rankings, TREC files, metrics and BM25."""
