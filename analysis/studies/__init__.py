"""Studies: one finished model over a grid of settings, and the tables of sweeps."""
