"""The providers that our stacks ask for: one a cloud, each from the oldest version that the tests validate on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Final
from urllib.parse import urlsplit

from provisioner.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Requirement:
    """A provider, ``hashicorp/<name>``. ``cloud`` is its cloud's name in sentences, ``oldest`` the oldest version.

    ``endpoint`` is the variable of the environment that names another cloud than the real one, ``stand_in`` the version
    under which the sandbox's stand-in offers itself.
    """

    name: str
    cloud: str
    oldest: tuple[int, int, int]
    endpoint: str
    stand_in: str

    @property
    def hcl(self) -> str:
        """A root module that asks for it."""
        oldest = ".".join(map(str, self.oldest))
        return (
            f"terraform {{\n  required_providers {{\n    {self.name} = {{\n"
            f'      source  = "hashicorp/{self.name}"\n      version = ">= {oldest}"\n    }}\n  }}\n}}\n'
        )

    def in_sandbox(self, environ: Mapping[str, str]) -> bool:
        """Say whether its cloud is emulated on this machine: ``endpoint`` names a loopback address."""
        host = urlsplit(environ.get(self.endpoint, "")).hostname or ""
        try:
            return host == "localhost" or ip_address(host).is_loopback
        except ValueError:
            return False


AWS: Final = Requirement("aws", "AWS", (5, 31, 0), "AWS_ENDPOINT_URL", "5.100.99")
GOOGLE: Final = Requirement("google", "Google", (6, 50, 0), "GOOGLE_COMPUTE_CUSTOM_ENDPOINT", "8.7.99")
_ALL: Final = {one.name: one for one in (AWS, GOOGLE)}


def required(name: str) -> Requirement:
    """Return the requirement of a provider by its name, ``aws`` or ``google``. Raises ConfigError for another."""
    try:
        return _ALL[name]
    except KeyError:
        message = f"{name}: no stack here asks for this Terraform provider"
        raise ConfigError(message) from None
