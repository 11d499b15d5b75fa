"""Federated digits."""
