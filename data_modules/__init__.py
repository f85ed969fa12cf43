"""Texts in, batches out: collections, their formats, tokenisation, sampling, the LightningDataModule."""
