"""Checkpoints in an object store: content-addressed chunks, a manifest as the commit, an epoch as the fence.

Imported on bare machines: the standard library, obstore and blake3 (zstandard for the packed workdir), nothing else.
"""
