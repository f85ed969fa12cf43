"""Collections as the papers made them: from public downloads, with the counts that must result."""
