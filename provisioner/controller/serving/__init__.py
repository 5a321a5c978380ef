"""Many jobs: a queue in a database, and controllers that work on it (docs/serve.md)."""
