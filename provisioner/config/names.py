"""Names that must exist somewhere: AWS regions, machine types, GPUs, AutoDL regions, variables, URLs."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable
from difflib import get_close_matches
from typing import Annotated
from urllib.parse import urlsplit

from pydantic import AfterValidator

from provisioner import catalog
from provisioner.catalog import geography
from provisioner.config.values import matching, mistake, short

_VARIABLE = r"[A-Za-z_][A-Za-z0-9_]*"
_SECRET_NAMES = re.compile(
    r".*(_API_KEY|_PASSWORD|_SECRET_KEY|_SECRET_ACCESS_KEY)|AWS_SESSION_TOKEN|AUTODL_TOKEN|(HF|GITHUB|HUGGING_FACE_HUB)_TOKEN"
)
_STORE_SCHEMES = ("s3", "gs", "file")


def closest(word: str, known: Iterable[str]) -> str:
    """Return the known word that was probably meant, or nothing. Swapped letters weigh less than wrong ones."""
    plain = {name.casefold(): name for name in known}
    close = get_close_matches(word.casefold(), plain, n=5, cutoff=0.6)
    swapped = [name for name in close if sorted(name) == sorted(word.casefold())]
    return plain[(swapped or close)[0]] if close else ""


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return ``did you mean `us-east-1`?``, or nothing when no known word is close."""
    meant = closest(word, known)
    return f"did you mean `{meant}`?" if meant else ""


def is_loopback(url: str) -> bool:
    """Say whether a URL leads to this very machine."""
    host = urlsplit(url).hostname or ""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _gpu(name: str) -> str:
    ours = catalog.canonical(name)
    if ours is None:
        if name.casefold() == "any":
            raise mistake("`any` stands alone", "write gpus: any")
        raise mistake(f"no GPU is called {short(name)}", did_you_mean(name, catalog.gpu_names()) or _some_gpus())
    return ours


def _gpu_model(name: str) -> str:
    ours = _gpu(name)
    if catalog.card(ours) is None:
        sizes = " or ".join(one for one in catalog.gpu_names() if one != ours and catalog.matches([ours], one))
        raise mistake(f"{short(name)} is sold in several sizes", f"write {sizes}")
    return ours


def _country(code: str) -> str:
    if code.upper() not in geography.countries():
        known = ", ".join(geography.countries())
        raise mistake(f"no cloud here has a region in {short(code)}", f"write ISO codes of two letters: {known}")
    return code.upper()


def _some_gpus() -> str:
    return "write names such as T4, L4, A10G, V100, A100, H100, RTX 4090"


def _autodl_gpu(name: str) -> str:
    """Keep the name as it is written: AutoDL's room turns it into a stock name or a spec id."""
    if catalog.autodl_stock_names(name):
        return name
    if catalog.canonical(name):
        raise mistake(f"AutoDL has no {short(name)}", f"it has {', '.join(_autodl_gpus())}")
    raise mistake(f"no GPU or spec id of AutoDL is called {short(name)}", did_you_mean(name, _autodl_names()))


def _autodl_gpus() -> list[str]:
    return [name for name in catalog.gpu_names() if catalog.autodl_stock_names(name)]


def _autodl_names() -> list[str]:
    specs = [spec for name in _autodl_gpus() for spec in catalog.autodl_pro_specs(name)]
    return [*_autodl_gpus(), *specs]


def _aws_region(region: str) -> str:
    if region in catalog.regions():
        return region
    if region[:-1] in catalog.regions():
        raise mistake(f"{short(region)} is a zone", f"write its region, {region[:-1]}: every zone of it is tried")
    raise mistake(
        f"AWS has no region {short(region)}", did_you_mean(region, catalog.regions()) or "write one such as us-east-1"
    )


def _gcp_region(region: str) -> str:
    known = catalog.regions("gcp")
    if region in known:
        return region
    place, _, letter = region.rpartition("-")
    if place in known and len(letter) == 1:
        raise mistake(f"{short(region)} is a zone", f"write its region, {place}: every zone of it is tried")
    advice = did_you_mean(region, known) or "write one such as us-central1"
    raise mistake(f"Google Cloud has no region {short(region)}", advice)


def _autodl_region(region: str) -> str:
    if region in catalog.AUTODL_REGIONS:
        return region
    advice = did_you_mean(region, catalog.AUTODL_REGIONS)
    codes = f"its codes are {', '.join(catalog.AUTODL_REGIONS)}"
    raise mistake(f"AutoDL has no region {short(region)}", f"{advice} {codes}".strip())


def _instance_type(name: str) -> str:
    if name in catalog.instance_types():
        return name
    advice = did_you_mean(name, catalog.instance_types()) or "write one such as g4dn.xlarge, or [] for any that fits"
    raise mistake(f"AWS has no GPU machine type {short(name)} (catalog of {catalog.snapshot()})", advice)


def _gcp_machine_type(name: str) -> str:
    """Check a type of Google Cloud. The card of an n1 machine may be spelled as people do: it becomes our name."""
    host, plus, cards = name.partition("+")
    count, _, card = cards.partition("x")
    full = f"{host}+{count}x{catalog.canonical(card) or card}" if plus else name
    known = catalog.instance_types("gcp")
    if full in known:
        return full
    what = f"Google Cloud has no GPU machine type {short(name)} (catalog of {catalog.snapshot('gcp')})"
    if plus and host in known:
        fitting = [one.partition("+")[2] for one in catalog.gcp_machine_types([host]) if "+" in one]
        if not fitting:
            raise mistake(f"{host} comes with its cards", f"write {host}")
        raise mistake(f"{host} cannot carry {short(cards)}", f"it carries {', '.join(fitting)}")
    raise mistake(what, did_you_mean(full, known) or "write one such as g2-standard-4, or n1-standard-8+1xT4")


def _cidr(text: str) -> str:
    try:
        network = ipaddress.ip_network(text)
    except ValueError:
        raise mistake(f"{short(text)} is not a network", "write one such as 203.0.113.7/32") from None
    if network.prefixlen == 0:
        raise mistake(f"{text} opens SSH to the whole internet", "write your own address, e.g. 203.0.113.7/32")
    return text


def _variable(name: str) -> str:
    if name.startswith("FAILOVER_"):
        raise mistake("names that begin with FAILOVER_ are set by the node", "choose another name")
    if _SECRET_NAMES.fullmatch(name):
        raise mistake("this names a secret, whose value must not stand in a file", "list the name under job.secrets")
    return name


def _url(text: str) -> str:
    parts = urlsplit(text)
    if parts.username or parts.password:
        raise mistake("the URL holds credentials", "remove them: they are read from environment variables")
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise mistake(f"{short(text)} is not a URL", "write it as https://host[:port]")
    return text


def _token_url(text: str) -> str:
    if urlsplit(_url(text)).scheme == "http" and not is_loopback(text):
        raise mistake("plain http would show AUTODL_TOKEN to the network", "write https://")
    return text


def store_uri(text: str) -> str:
    """Check the URI of a store. Raises pydantic's error."""
    parts = urlsplit(text)
    if parts.username or parts.password:
        raise mistake("the URI holds credentials", "remove them: they are read from environment variables")
    if parts.scheme not in _STORE_SCHEMES:
        advice = "write s3://bucket/prefix, gs://bucket/prefix or file:///directory"
        what = f"no store is called {short(parts.scheme + '://')}" if "://" in text else f"{short(text)} is not a URI"
        raise mistake(what, advice)
    if parts.scheme == "file":
        if parts.netloc or not parts.path.startswith("/"):
            raise mistake(f"{short(text)} is not an absolute path", "write three slashes: file:///directory")
    elif re.fullmatch(r"[a-z0-9][a-z0-9._-]{1,61}[a-z0-9]", parts.netloc) is None:
        raise mistake(f"{short(parts.netloc)} is not a bucket name", "use 3 to 63 lower-case letters, digits, - and .")
    if parts.query or parts.fragment:
        raise mistake(f"{short(text)} has a query or fragment", "write only bucket and prefix")
    return text


def _image(text: str) -> str:
    if text.startswith("ami-") and re.fullmatch(r"ami-([0-9a-f]{8}|[0-9a-f]{17})", text) is None:
        raise mistake(f"{short(text)} is not an image id", "ami- is followed by 8 or 17 hex digits")
    return text


AwsRegion = Annotated[str, AfterValidator(_aws_region)]
AutodlRegion = Annotated[str, AfterValidator(_autodl_region)]
GcpRegion = Annotated[str, AfterValidator(_gcp_region)]
GcpMachineType = Annotated[str, AfterValidator(_gcp_machine_type)]
AwsZone = Annotated[str, matching(r"[a-z]+(-[a-z]+)+-[0-9][a-z]", "is not a zone", "write one such as us-east-1a")]
GcpZone = Annotated[str, matching(r"[a-z]+-[a-z]+[0-9]+-[a-z]", "is not a zone", "write one such as us-central1-a")]
GpuName = Annotated[str, AfterValidator(_gpu)]
GpuModel = Annotated[str, AfterValidator(_gpu_model)]
"""A card of one memory size, not a group such as ``A100``."""
Country = Annotated[str, AfterValidator(_country)]
AutodlGpu = Annotated[str, AfterValidator(_autodl_gpu)]
InstanceType = Annotated[str, AfterValidator(_instance_type)]
MachineImage = Annotated[
    str, matching(r"[ -~]{3,128}", "is not the name of an image", "write an id, a name or an SSM parameter"),
    AfterValidator(_image),
]  # fmt: skip
ImageUuid = Annotated[
    str, matching(r"(base-)?image-[A-Za-z0-9-]+", "is no image of AutoDL's", "write one such as base-image-l2t43iu6uk")
]
Cidr = Annotated[str, AfterValidator(_cidr)]
HttpUrl = Annotated[str, AfterValidator(_url)]
TokenUrl = Annotated[str, AfterValidator(_token_url)]
StoreUri = Annotated[str, AfterValidator(store_uri)]
PlainVariable = Annotated[
    str,
    matching(_VARIABLE, "is not a variable's name", "use letters, digits and _, not a digit first"),
    AfterValidator(_variable),
]
SecretName = Annotated[
    str,
    matching(
        _VARIABLE,
        "this is not the name of an environment variable",
        "write a name such as WANDB_API_KEY, never the value (not shown here)",
        show=False,
    ),
]
"""A secret by its name. What does not look like one may be the secret itself, so it is not shown."""
