"""From query vectors to documents: token vectors on disk, and three ways to search them."""
