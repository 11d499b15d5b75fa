"""Errors in the user's words, each kind with its exit code."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import typer
from rich.console import Console
from rich.markup import escape

__all__ = ["DONE", "HELD", "MISTAKE", "NO_METER", "STOPPED", "WRONG", "mistakes", "say"]

DONE, WRONG, MISTAKE, HELD, NO_METER, STOPPED = 0, 1, 2, 3, 4, 130
NOT_AS_NAMED = (FileNotFoundError, FileExistsError, IsADirectoryError, NotADirectoryError)


@contextmanager
def mistakes() -> Iterator[None]:
    """What a user can mend is one message and an exit code; what only we can mend keeps its traceback."""
    from joulegrad.lab.client import Diverged
    from joulegrad.lab.store import Damaged, Held

    try:
        yield
    except Held as why:
        _end(HELD, str(why))
    except BrokenPipeError:
        raise  # whoever read has gone: there is nobody to tell
    except NOT_AS_NAMED as why:
        _end(MISTAKE, _words(why))
    except OSError as why:
        _end(WRONG, _words(why))
    except (Diverged, Damaged, MemoryError) as why:
        _end(WRONG, str(why))
    except ValueError as why:
        _end(MISTAKE, str(why))
    except KeyboardInterrupt:
        _end(STOPPED, "stopped; the same command goes on from the last checkpoint")


def say(text: str) -> None:
    """A line on standard error."""
    Console(stderr=True).print(escape(text), style="bold red", highlight=False, soft_wrap=True)


def _end(code: int, text: str) -> None:
    say(text)
    raise typer.Exit(code) from None


def _words(why: OSError) -> str:
    return f"{why.filename}: {why.strerror}" if why.filename and why.strerror else str(why)
