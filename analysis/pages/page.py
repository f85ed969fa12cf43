"""Self-contained HTML pages: templates, pictures as data, nothing fetched from anywhere."""

import base64
from pathlib import Path
from typing import Any

import jinja2

from gr_mvdr.files.writing import write_text

TEMPLATES = Path(__file__).parent / "templates"


def picture(path: Path) -> str:
    """A PNG as a data URL, so that the page needs no other file."""
    return "data:image/png;base64," + base64.b64encode(path.read_bytes()).decode()


def write_page(path: Path, template: str, **values: Any) -> Path:
    """Fills a template and writes it (temporary name, then renamed).

    Args:
        path: where the page goes.
        template: a file of `analysis/pages/templates`.
        values: what the template shows; texts are escaped.
    """
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=jinja2.StrictUndefined,  # a forgotten value is an error, not a blank
        trim_blocks=True,
        lstrip_blocks=True,
    )
    write_text(path, environment.get_template(template).render(**values))
    return path
