"""Questions beyond the papers: axioms, activation patching, length bias.

Nothing imports this room.
"""
