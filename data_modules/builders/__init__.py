"""Builders of the papers' collections from public downloads, and public collections by name."""
