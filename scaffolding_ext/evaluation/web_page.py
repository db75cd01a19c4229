"""Self-contained HTML pages, which make no network requests; their templates are in `templates/`."""

from __future__ import annotations

import base64
from typing import Any

from scaffolding_ext import __version__
from scaffolding_ext.documents import json_text


def render_page(template: str, **values: Any) -> str:
    from jinja2 import Environment, PackageLoader

    environment = Environment(
        loader=PackageLoader("scaffolding_ext.evaluation"), autoescape=True, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters["json"] = _json
    return environment.get_template(template).render(version=__version__, **values)


def data_uri(png: bytes) -> str:
    """Encode a picture for a page."""
    return f"data:image/png;base64,{base64.b64encode(png).decode()}"


def _json(value: Any) -> Any:
    """Encode JSON that cannot end the script that contains it."""
    from markupsafe import Markup

    text = json_text(value, separators=(",", ":"), ensure_ascii=False)
    return Markup(text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e"))
