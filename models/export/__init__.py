"""To and from the folders of other libraries."""
