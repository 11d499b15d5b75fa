"""The commands. Each parses, calls the lab, and prints; nothing is computed here."""

from joulegrad.cli import calibration, completion, energy, experiments, flower, keeping, reports, tools
from joulegrad.cli.app import app

__all__ = ["app", "calibration", "completion", "energy", "experiments", "flower", "keeping", "reports", "tools"]
