"""Questions of the papers: one file a question, with its measure, metrics, table and figure."""
