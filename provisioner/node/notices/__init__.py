"""Who may know that this machine, or its GPU, is about to go away: one file a source, one contract for all.

| file | source |
|---|---|
| ``ec2.py`` | the EC2 metadata service |
| ``gce.py`` | the Compute Engine metadata server |
| ``gpu.py`` | the NVIDIA driver |
| ``hints.py`` | the controller, through the store |
| ``signals.py`` | whoever sends a signal: systemd, Docker, Slurm |

``source.py`` is the contract, ``watching.py`` keeps them apart.
"""
