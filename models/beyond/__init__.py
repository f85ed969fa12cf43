"""Methods beyond the papers, one file each: the rest of the code names them in configs alone."""
