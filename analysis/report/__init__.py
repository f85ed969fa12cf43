"""A run's page: its report, and cases to browse."""
