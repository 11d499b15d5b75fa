"""The commands. Each parses, calls the lab, and prints; nothing is computed here.

Exit codes: 0 done; 1 it went wrong on the way, or something does not hold; 2 a mistake in the arguments or the
experiment; 3 another process holds the folder; 130 stopped when asked to, to be gone on with.
"""

from joulegrad.cli import experiments, tools
from joulegrad.cli.app import app

__all__ = ["app", "experiments", "tools"]
