"""The ground that tests stand on holds: see tests/conftest.py."""

from __future__ import annotations

import os
import socket

import boto3
import pytest


@pytest.mark.parametrize("host", ["192.0.2.1", "2001:db8::1", "cloud.example"])
def test_nothing_leaves_this_machine(host: str) -> None:
    with pytest.raises(RuntimeError, match="stay on this machine"):
        socket.create_connection((host, 443), timeout=1)


def test_this_machine_can_be_reached() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        socket.create_connection(server.getsockname(), timeout=5).close()


def test_no_account_of_the_operator_is_in_sight() -> None:
    assert boto3.Session().get_credentials() is None
    assert not {"AUTODL_TOKEN", "TF_CLI_CONFIG_FILE", "AWS_PROFILE"} & set(os.environ)
