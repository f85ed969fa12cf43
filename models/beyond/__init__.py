"""Methods beyond the papers, one file each; only configs name them, no other code imports them."""
