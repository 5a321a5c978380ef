"""Terraform: write stacks, find the program and its provider, run them, and check every plan before it is applied."""
