"""Texts in, batches out: collections, formats, tokenisation, sampling, the LightningDataModule."""
