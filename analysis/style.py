"""How figures look: the size of the paper's columns, colours that everyone can tell apart.

Colours are Okabe and Ito's, told apart by every kind of colour vision; lines and bars differ in
marker or hatch as well.
"""

COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442", "#000000")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
HATCHES = ("", "//", "..", "xx", "\\\\", "--", "++", "oo")

COLUMN_WIDTH, PAGE_WIDTH = 3.33, 7.0  # inches, of the ACM's two-column page
PANEL_HEIGHT = 2.5

STYLE = {
    "font.size": 8,
    "axes.titlesize": 8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "grid.color": "#dddddd",
    "lines.linewidth": 1.2,
    "lines.markersize": 4,
    "figure.dpi": 100,
    "pdf.fonttype": 42,  # text stays text in the PDF
}

# What an alignment's aligning side is.
ALIGNING = {"query_to_document": "query", "document_to_query": "document"}
