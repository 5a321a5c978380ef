"""gpu-failover: a training job that does not stop when GPUs run out."""

__version__ = "0.1.0"
