"""Rankings, TREC files, metrics, significance, BM25."""
