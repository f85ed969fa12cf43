"""The papers' tables as recipes: the list of them, their cost, rehearsals, the document."""
