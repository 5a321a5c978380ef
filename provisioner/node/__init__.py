"""What runs on the machine: ``python -m provisioner.node``. Starts without any library of the controller."""
