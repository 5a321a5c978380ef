"""Google Cloud in a box; ``emulator.GceEmulator`` is the whole of it."""
