"""Rankings, TREC files, metrics, BM25."""
