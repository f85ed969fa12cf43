"""From query to identifiers to documents: constraints, beam search, evidence."""
