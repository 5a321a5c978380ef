"""What the sandbox's Compute Engine answers to those who only look: resources, lists with filters and pages."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from provisioner.sandbox.gce import places, requests
from provisioner.sandbox.gce.faults import Refused
from provisioner.sandbox.gce.resources import Resources
from provisioner.sandbox.gce.wire import Request
from provisioner.sandbox.gce.world import Resource, World

_DEFAULT_PAGE = 500
_TERM = re.compile(r"""\(?\s*([\w.-]+)\s*(=|!=|:|\beq\b|\bne\b)\s*("[^"]*"|'[^']*'|[^\s()]+)\s*\)?""")


class Reader:
    """Answers for one world. The caller holds its lock. ``console`` returns what an instance has written."""

    def __init__(self, world: World, resources: Resources, console: Callable[[Resource], str]) -> None:
        """Read from a world, and never change it."""
        self._world, self._resources, self._console = world, resources, console

    def answer(self, request: Request) -> Resource:
        """Answer a request that changes nothing. Raises Refused (404)."""
        if not request.collection:
            return self._place(request)
        if request.collection in ("operations", "zones", "regions") and request.scope != "aggregated":
            return self._listed(request)
        if request.scope == "aggregated":
            return self._aggregated(request)
        self.check_place(request)
        return self._look(request)

    def check_place(self, request: Request) -> None:
        """Refuse a zone or region that there is not."""
        if request.scope.startswith("zones/"):
            self._resources.zone(request.place)
        elif request.scope.startswith("regions/"):
            self._resources.region(request.place)

    def _place(self, request: Request) -> Resource:
        if request.scope.startswith("zones/"):
            return self._resources.zone(request.place)
        if request.scope.startswith("regions/"):
            return self._resources.region(request.place)
        return self._resources.project()

    def _listed(self, request: Request) -> Resource:
        """Answer for zones, regions and operations, which nobody makes."""
        path = f"projects/{self._world.project}/{request.collection}"
        if request.collection == "zones":
            zones = [self._resources.zone(name) for name in places.all_zones()]
            return listing(self._world, path, "zone", zones, request.query)
        if request.collection == "regions":
            regions = [self._resources.region(name) for name in places.REGIONS]
            return listing(self._world, path, "region", regions, request.query)
        if request.name:
            return self._world.operation(request.scope, request.name)
        path = f"projects/{self._world.project}/{request.scope}/operations"
        return listing(self._world, path, "operation", self._world.operations(request.scope), request.query)

    def _aggregated(self, request: Request) -> Resource:
        scopes: dict[str, list[Resource]] = {}
        regional = request.collection == "subnetworks"
        for place in places.REGIONS if regional else places.all_zones():
            scope = f"{'regions' if regional else 'zones'}/{place}"
            scenery = self._resources.scenery(scope, request.collection)
            operations = request.collection == "operations"
            own = self._world.operations(scope) if operations else self._world.items(scope, request.collection)
            scopes[scope] = own if scenery is None else scenery
        return aggregated(self._world, request.collection, scopes, request.query)

    def _look(self, request: Request) -> Resource:
        scope, collection, name = request.scope, request.collection, request.name
        scenery = self._resources.scenery(scope, collection) if scope.startswith("zones/") else None
        if name and scenery is not None:
            found = next((one for one in scenery if one["name"] == name), None)
            if found is None:
                raise Refused("notFound", f"The resource '{self._world.path(scope, collection, name)}' was not found")
            return found
        if request.action == "serialPort":
            text = self._console(self._world.get(scope, collection, name))
            return {"kind": "compute#serialPortOutput", "contents": text, "start": "0", "next": str(len(text))}
        if name:
            return self._world.get(scope, collection, name)
        items = self._world.items(scope, collection) if scenery is None else scenery
        path = f"projects/{self._world.project}/{scope}/{collection}"
        return listing(self._world, path, collection.removesuffix("s"), items, request.query)

    def image(self, request: Request) -> Resource:
        """Return an image, or the newest of a family. Raises Refused (404)."""
        family = request.name == "family"
        name = f"family/{request.action}" if family else request.name
        path = f"projects/{request.project}/global/images/{name}"
        image = requests.image_of(path, request.project) if request.name else None
        if image is None:
            raise Refused("notFound", f"The resource '{path}' was not found")
        return {**image, "selfLink": self._world.link(image["selfLink"])}


def page(items: list[Resource], query: Mapping[str, str]) -> tuple[list[Resource], str | None]:
    """Return the part of a list that is asked for and the token of the next. Raises Refused."""
    kept = [item for item in items if _fits(item, query.get("filter", ""))]
    try:
        start = int(query.get("pageToken") or 0)
        size = min(int(query.get("maxResults") or _DEFAULT_PAGE), _DEFAULT_PAGE)
    except ValueError:
        text = f"Invalid value for field 'pageToken': '{query.get('pageToken')}'. The page token is invalid."
        raise Refused("invalid", text) from None
    following = start + size
    return kept[start:following], str(following) if following < len(kept) else None


def listing(world: World, path: str, kind: str, items: list[Resource], query: Mapping[str, str]) -> Resource:
    """Return a list as Compute Engine sends it. An empty one has no ``items``."""
    shown, following = page(items, query)
    answer: Resource = {"kind": f"compute#{kind}List", "id": path, "selfLink": world.link(path)}
    if shown:
        answer["items"] = shown
    if following is not None:
        answer["nextPageToken"] = following
    return answer


def aggregated(
    world: World, collection: str, scopes: Mapping[str, list[Resource]], query: Mapping[str, str]
) -> Resource:
    """Return one list over every scope. A scope without results says so."""
    flat = [{**item, "_scope": scope} for scope, items in scopes.items() for item in items]
    shown, following = page(flat, query)
    items: dict[str, Any] = {}
    for scope in scopes:
        mine = [{k: v for k, v in one.items() if k != "_scope"} for one in shown if one["_scope"] == scope]
        warning = {
            "code": "NO_RESULTS_ON_PAGE",
            "message": f"There are no results for scope '{scope}' on this page.",
            "data": [{"key": "scope", "value": scope}],
        }
        items[scope] = {collection: mine} if mine else {"warning": warning}
    path = f"projects/{world.project}/aggregated/{collection}"
    kind = f"compute#{collection.removesuffix('s')}AggregatedList"
    answer: Resource = {"kind": kind, "id": path, "items": items, "selfLink": world.link(path)}
    if following is not None:
        answer["nextPageToken"] = following
    return answer


def _fits(item: Resource, text: str) -> bool:
    """Say whether a resource fits a filter: terms ``field op value`` that all must hold. Raises Refused."""
    rest = re.sub(r"\bAND\b", " ", _TERM.sub(" ", text)).replace("(", " ").replace(")", " ").strip()
    if rest:
        raise Refused("invalid", f"Invalid value for field 'filter': '{text}'. Invalid list filter expression.")
    return all(_holds(item, *match.groups()) for match in _TERM.finditer(text))


def _holds(item: Resource, field: str, operator: str, value: str) -> bool:
    wanted = value.strip("\"'")
    have: Any = item
    for part in field.split("."):
        have = have.get(part) if isinstance(have, dict) else None
    text = "" if have is None else str(have).lower() if isinstance(have, bool) else str(have)
    if operator == ":":
        return have is not None and (wanted == "*" or wanted.rstrip("*") in text)
    if operator == "eq":
        return re.fullmatch(wanted, text) is not None
    if operator == "ne":
        return re.fullmatch(wanted, text) is None
    return (text == wanted) == (operator == "=")
