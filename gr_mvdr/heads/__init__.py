"""The output table D of a decoder: plain, PAWA, non-parametric (gr_as_mvdr Table 3)."""
