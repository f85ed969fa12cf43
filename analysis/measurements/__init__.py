"""What the stored alignments say, in one pass over them, and how it is drawn."""
