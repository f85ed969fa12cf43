"""One LightningModule per system; each makes only the three choices of Eq. 1."""
