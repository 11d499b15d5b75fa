"""`joulegrad` and `python -m joulegrad`: the command line, or what to install for it."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line, which needs the extra `joulegrad[lab]`."""
    try:
        import rich  # noqa: F401
        import scipy  # noqa: F401
        import typer  # noqa: F401
    except ModuleNotFoundError as missing:
        sys.stderr.write(f"the joulegrad command needs {missing.name}: pip install 'joulegrad[lab]'\n")
        sys.exit(1)
    from joulegrad.cli import app

    app()


if __name__ == "__main__":
    main()
