"""Readers of file formats: a collection's files give a `Layout`, other files give pairs."""
