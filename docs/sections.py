"""For the API page: our docstrings have one `Example:`, which griffe knows as `Examples:`."""

from __future__ import annotations

from typing import Any

import griffe


class Sections(griffe.Extension):
    """Names the section as griffe does, so that sessions are shown as code."""

    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        """Of each object that is read."""
        if obj.docstring is not None:
            obj.docstring.value = obj.docstring.value.replace("\nExample:\n", "\nExamples:\n")
