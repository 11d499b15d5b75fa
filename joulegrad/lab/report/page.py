"""The report as one page that needs nothing but a browser: no network, no other file."""

from __future__ import annotations

import html
import json
from importlib.resources import files
from string import Template

from joulegrad.lab.report.content import Content

__all__ = ["page"]


def page(content: Content) -> str:
    """The page, with plotly.js and all figures in it.

    Args:
        content: what `content.content` made.
    """
    try:
        from plotly.offline import get_plotlyjs
    except ModuleNotFoundError:
        raise ValueError("a report as a page needs plotly: pip install 'joulegrad[report]'") from None
    here = files("joulegrad.lab.report")
    return Template((here / "page.html").read_text("utf-8")).substitute(
        title=html.escape(content["title"]),
        style=(here / "page.css").read_text("utf-8"),
        script=(here / "page.js").read_text("utf-8"),
        plotly=get_plotlyjs().replace("</script", "<\\/script"),
        # no text of the user's may end the element that holds it
        content=json.dumps(content, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c"),
    )
