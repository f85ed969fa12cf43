"""The documentation site: MyST pages, and an API reference made of the docstrings."""

import re
import sys
from pathlib import Path

import docutils.nodes
from latex2mathml.converter import convert

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

project = "gr-mvdr"
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.autosummary", "sphinx.ext.napoleon"]
myst_enable_extensions = ["dollarmath"]
myst_heading_anchors = 4
html_theme = "furo"
html_math_renderer = "mathml"
html_show_copyright = False
exclude_patterns = ["_build", "notebooks"]
templates_path = ["_templates"]
suppress_warnings = ["ref.python"]  # attributes of one name in several classes
autosummary_generate = True
autodoc_typehints = "none"  # the signature of the source shows them
autodoc_preserve_defaults = True
autodoc_inherit_docstrings = False
autodoc_default_options = {"members": True}
napoleon_use_ivar = True


SECTION = re.compile(r"(Args|Attributes|Raises|Returns|Yields):$")
CODE = re.compile(r"(``.*?``|`[^`]*`)", re.DOTALL)


def as_restructured_text(app, what, name, obj, options, lines):
    """Docstrings are plain text: code in backticks, examples indented below a line with a colon."""
    text = re.sub(r"(?m)^Returns:\n((?:    .*\n|\n)+)", separate_returns, "\n".join(lines) + "\n")
    blocks, example = [[]], None  # the indentation of the line above an example
    for line in text.split("\n"):
        indent = len(line) - len(line.lstrip())
        above = [other for other in blocks[-1] if other]
        if example is None and above and line and blocks[-1][-1] == "":
            last = above[-1]
            outer = len(last) - len(last.lstrip())
            if last.endswith(":") and indent > outer and not SECTION.match(last.strip()):
                blocks[-1][-2] += ":"
                blocks.append([])
                example = outer
        elif example is not None and line and indent <= example:
            blocks.append([])
            example = None
        blocks[-1].append(line)
    for number in range(0, len(blocks), 2):  # every second block is an example
        parts = CODE.split("\n".join(blocks[number]))
        parts[::2] = [re.sub(r"([*|\\`]|_\b)", r"\\\1", part) for part in parts[::2]]
        parts[1::2] = [part if part.startswith("``") else f"`{part}`" for part in parts[1::2]]
        blocks[number] = "".join(parts).split("\n")
    lines[:] = [line for block in blocks for line in block]


def separate_returns(found: re.Match) -> str:
    """A paragraph for each of several values, whose lines are indented alike."""
    values = re.sub(r"(?m)^        ", "    ", found[1])
    return "Returns:\n" + re.sub(r"\n(    \w+: )", r"\n\n\1", values)


def write_formula(translator, node):
    """A formula as MathML, which browsers show without a script from elsewhere."""
    display = "block" if node.tagname == "math_block" else "inline"
    translator.body.append(convert(node.astext(), display=display))
    raise docutils.nodes.SkipNode


def setup(app):
    app.connect("autodoc-process-docstring", as_restructured_text, priority=400)
    app.add_html_math_renderer("mathml", (write_formula, None), (write_formula, None))


# The list of the papers' experiments, which docs/reproduce.md includes.
from analysis.reproduce import list_experiments  # noqa: E402

(ROOT / "docs/_build").mkdir(exist_ok=True)
(ROOT / "docs/_build/experiments.md").write_text("\n".join(list_experiments()), encoding="utf-8")
