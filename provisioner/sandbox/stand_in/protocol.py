"""The provider protocol of Terraform (go-plugin, gRPC, version 6), served with PyPI's ``tf``.

Its schema layer is too narrow for nested blocks and objects, so the service here is our own. The cloud is opened when
it is first needed: Terraform starts a provider several times a run, often for its schema alone.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from functools import cached_property
from ipaddress import ip_address
from typing import Any, Final
from urllib.parse import urlsplit

from tf.gen import tfplugin_pb2 as pb
from tf.gen import tfplugin_pb2_grpc as rpc
from tf.types import Unknown
from tf.utils import Diagnostics, read_dynamic_value, to_dynamic_value

from provisioner.sandbox.stand_in import Provider, Refused, State

_NESTING: Final = {"single": 1, "list": 2, "set": 3, "map": 4}
_NULL: Final = pb.DynamicValue(msgpack=b"\xc0")


def _loopback(url: str) -> bool:
    host = urlsplit(url).hostname or ""
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


def _block(described: Mapping[str, Any]) -> Any:
    """Turn a block of ``terraform providers schema -json`` into its protocol form."""
    return pb.Schema.Block(
        attributes=[
            pb.Schema.Attribute(
                name=name,
                type=json.dumps(attribute["type"]).encode(),
                **{flag: attribute.get(flag, False) for flag in ("required", "optional", "computed", "sensitive")},
            )
            for name, attribute in sorted(described["attributes"].items())
        ],
        block_types=[
            pb.Schema.NestedBlock(
                type_name=name,
                nesting=_NESTING[nested["nesting_mode"]],
                min_items=nested["min_items"],
                max_items=nested["max_items"],
                block=_block(nested["block"]),
            )
            for name, nested in sorted(described.get("block_types", {}).items())
        ],
    )


def _schema(described: Mapping[str, Any]) -> Any:
    return pb.Schema(version=described["version"], block=_block(described["block"]))


def _walk(block: Mapping[str, Any], value: State, leaf: Callable[[Mapping[str, Any], Any], Any]) -> State:
    """Rebuild a value with ``leaf`` applied to each attribute, nested blocks included."""
    made = {name: leaf(attribute, value.get(name)) for name, attribute in block["attributes"].items()}
    for name, nested in block.get("block_types", {}).items():
        inner = value.get(name)
        if inner is Unknown or nested["nesting_mode"] not in {"list", "set"}:
            made[name] = inner
        else:
            made[name] = [_walk(nested["block"], item, leaf) for item in inner or ()]
    return made


def _to_be_known(attribute: Mapping[str, Any], value: Any) -> Any:
    """A computed attribute that nobody set is known after apply."""
    return Unknown if value is None and attribute.get("computed") else value


def _settled(_attribute: Mapping[str, Any], value: Any) -> Any:
    """Nothing may stay unknown after apply."""
    return None if value is Unknown else value


class Servicer(rpc.ProviderServicer):  # type: ignore[misc]
    """The provider protocol, version 6. Method names are the protocol's."""

    def __init__(self, provider: Provider) -> None:
        """Load the schema; the cloud is configured later."""
        self._provider = provider
        self._schema = json.loads(provider.schema.read_text(encoding="utf-8"))
        self._config: State = {}

    @cached_property
    def _cloud(self) -> Any:
        return self._provider.open(self._config)

    def _resource(self, name: str) -> Mapping[str, Any]:
        block: Mapping[str, Any] = self._schema["resource_schemas"][name]["block"]
        return block

    def GetMetadata(self, _request: Any, _context: Any) -> Any:  # noqa: N802
        """Say that the schema need not be asked for again."""
        capabilities = pb.ServerCapabilities(get_provider_schema_optional=True)
        return pb.GetMetadata.Response(server_capabilities=capabilities)

    def GetProviderSchema(self, _request: Any, _context: Any) -> Any:  # noqa: N802
        """Return the schema of everything."""
        return pb.GetProviderSchema.Response(
            provider=_schema(self._schema["provider"]),
            provider_meta=pb.Schema(block=pb.Schema.Block()),
            resource_schemas={name: _schema(found) for name, found in self._schema["resource_schemas"].items()},
            data_source_schemas={name: _schema(found) for name, found in self._schema["data_source_schemas"].items()},
            server_capabilities=pb.ServerCapabilities(get_provider_schema_optional=True),
        )

    def ValidateProviderConfig(self, _request: Any, _context: Any) -> Any:  # noqa: N802
        """Accept: Terraform has checked the types."""
        return pb.ValidateProviderConfig.Response()

    def ValidateResourceConfig(self, _request: Any, _context: Any) -> Any:  # noqa: N802
        """Accept: Terraform has checked the types."""
        return pb.ValidateResourceConfig.Response()

    def ValidateDataResourceConfig(self, _request: Any, _context: Any) -> Any:  # noqa: N802
        """Accept: Terraform has checked the types."""
        return pb.ValidateDataResourceConfig.Response()

    def ConfigureProvider(self, request: Any, _context: Any) -> Any:  # noqa: N802
        """Take the settings; refuse a cloud that is not on this machine."""
        self._config = read_dynamic_value(request.config) or {}
        diagnostics = Diagnostics()
        for name in self._provider.endpoints:
            if not _loopback(os.environ.get(name, "")):
                diagnostics.add_error(f"the stand-in is for the sandbox: {name} names no address of this machine")
        return pb.ConfigureProvider.Response(diagnostics=diagnostics.to_pb())

    def UpgradeResourceState(self, request: Any, _context: Any) -> Any:  # noqa: N802
        """Return the state as it is."""
        return pb.UpgradeResourceState.Response(upgraded_state=to_dynamic_value(json.loads(request.raw_state.json)))

    def ImportResourceState(self, request: Any, _context: Any) -> Any:  # noqa: N802
        """Start from nothing but the id; Terraform reads the rest."""
        state = {**_walk(self._resource(request.type_name), {}, lambda _a, _v: None), "id": request.id}
        imported = pb.ImportResourceState.ImportedResource(type_name=request.type_name, state=to_dynamic_value(state))
        return pb.ImportResourceState.Response(imported_resources=[imported])

    def ReadResource(self, request: Any, _context: Any) -> Any:  # noqa: N802
        """Look the thing up; gone is null."""
        diagnostics, new = Diagnostics(), request.current_state
        try:
            state = self._cloud.read(request.type_name, read_dynamic_value(request.current_state))
            block = self._resource(request.type_name)
            new = _NULL if state is None else to_dynamic_value(_walk(block, state, _settled))
        except Refused as error:
            diagnostics.add_error(str(error))
        return pb.ReadResource.Response(new_state=new, diagnostics=diagnostics.to_pb())

    def PlanResourceChange(self, request: Any, _context: Any) -> Any:  # noqa: N802
        """Say what will be known after apply, and what a change replaces."""
        prior, proposed = read_dynamic_value(request.prior_state), read_dynamic_value(request.proposed_new_state)
        if proposed is None:
            return pb.PlanResourceChange.Response(planned_state=request.proposed_new_state)
        block, replaced = self._resource(request.type_name), []
        if prior is None:
            proposed = _walk(block, proposed, _to_be_known)
        else:
            changed = {name for name in proposed if proposed[name] != prior.get(name)}
            in_place = self._provider.in_place.get(request.type_name, frozenset())
            replaced = sorted(changed - in_place - self._provider.free)
            if changed:
                proposed |= dict.fromkeys(self._provider.counters.get(request.type_name, ()), Unknown)
        return pb.PlanResourceChange.Response(
            planned_state=to_dynamic_value(proposed),
            requires_replace=[
                pb.AttributePath(steps=[pb.AttributePath.Step(attribute_name=name)]) for name in replaced
            ],
            legacy_type_system=True,
        )

    def ApplyResourceChange(self, request: Any, _context: Any) -> Any:  # noqa: N802
        """Create, update or delete."""
        diagnostics = Diagnostics()
        prior, planned = read_dynamic_value(request.prior_state), read_dynamic_value(request.planned_state)
        new: Any = None if prior is None else request.prior_state
        try:
            if planned is None:
                self._cloud.delete(request.type_name, prior)
                new = None
            else:
                act = self._cloud.create if prior is None else self._cloud.update
                new = to_dynamic_value(
                    _walk(self._resource(request.type_name), act(request.type_name, planned), _settled)
                )
        except Refused as error:
            diagnostics.add_error(str(error))
        return pb.ApplyResourceChange.Response(
            new_state=_NULL if new is None else new, diagnostics=diagnostics.to_pb(), legacy_type_system=True
        )

    def ReadDataSource(self, request: Any, _context: Any) -> Any:  # noqa: N802
        """Look something up."""
        diagnostics, state = Diagnostics(), _NULL
        block = self._schema["data_source_schemas"][request.type_name]["block"]
        try:
            found = self._cloud.data(request.type_name, read_dynamic_value(request.config))
            state = to_dynamic_value(_walk(block, found, _settled))
        except Refused as error:
            diagnostics.add_error(str(error))
        return pb.ReadDataSource.Response(state=state, diagnostics=diagnostics.to_pb())

    def StopProvider(self, _request: Any, _context: Any) -> Any:  # noqa: N802
        """Nothing is left half done by stopping: each call is short."""
        return pb.StopProvider.Response()
