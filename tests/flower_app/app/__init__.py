"""An app for tests: deterministic, and held at moments of the test's choosing."""
