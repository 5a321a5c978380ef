"""What Google and Terraform say, typed by the table of ``failures``: by code, status and sentence."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from provisioner.clouds.gcp.answers import Problem
from provisioner.clouds.gcp.failures import (
    BILLING,
    CONSOLE,
    CREDENTIALS,
    DENIED,
    DISABLED,
    NO_BUCKET,
    QUOTA,
    SENTENCES,
    SERVER,
    STATUS,
    TABLE,
    TOLD_BY_SENTENCE,
    UNREACHED,
)
from provisioner.clouds.meaning import CAPACITY, UNKNOWN, Meaning, one_line
from provisioner.model import Failure, FailureKind, Scope

_QUOTA_NAME = re.compile(r"[Qq]uota '(?:[a-z]+\.googleapis\.com/)?(\w+)' exceeded")
_PERMISSION = re.compile(r"(?:Required '|[Pp]ermission '?)([a-z][\w]*(?:\.\w+)+)'?(?: permission)?(?: for '([^']+)')?")
_LINK = re.compile(r"https://console\.\S+?(?=[\s,]|\.?$|\. )")
_NO_ANSWER: Final = re.compile(
    r"Timeout|Connection|Transport|ChunkedEncoding|RetryError|SSL|Proxy|IncompleteRead|JSONDecode|ParseError|ContentDecoding"
)
_NO_CREDENTIALS: Final = frozenset(
    {"DefaultCredentialsError", "RefreshError", "ReauthFailError", "MutualTLSChannelError", "UserAccessTokenError"}
)
_REACH: Final = {scope: reach for reach, scope in enumerate(Scope)}
_TERRAFORM: Final = re.compile(r"Error (\d{3}): (.+?)(?:, ([a-z][A-Za-z]+))?(?:\s*$|\s+(?:with|on) )", re.DOTALL)
_CODE_WORD: Final = re.compile(r"\b([A-Z]+(?:_[A-Z]+)+)\b")


def failure_of(problems: Sequence[Problem], *, project: str = "") -> Failure:
    """Type an answer. Of several errors the one with the widest scope counts, before unknown ones; others are named."""
    typed = [(problem, meaning_of(problem)) for problem in problems] or [
        (Problem(("UNKNOWN",), "no reason given"), None)
    ]
    problem, meaning = max(typed, key=_weight)
    elsewhere = dict.fromkeys(zone for one in problems for zone in zones_with_room(one))
    text = _told(problem, meaning)
    others = [one.code for one, _ in typed if one is not problem]
    if others:
        text = f"{text} (with {', '.join(dict.fromkeys(others))})"
    advice = None if meaning is None else _advice(problem, meaning, project)
    if meaning is CAPACITY and elsewhere:
        advice = f"Google names room in {', '.join(elsewhere)}"
    return (meaning or UNKNOWN).failure(problem.code, text, advice=advice, elsewhere=tuple(elsewhere))


def failure_in(text: str, *, project: str = "", bucket: str = "") -> Failure | None:
    """Type what Terraform says of a refusal by Google; None where it says something else.

    ``bucket`` is the one whose policy Terraform was to change: Google does not name a bucket that it does not have.
    """
    found = _TERRAFORM.search(text)
    if found is not None:
        codes = (found.group(3),) if found.group(3) else ()
        problem = Problem(codes, one_line(found.group(2)), int(found.group(1)))
    else:
        codes = tuple(word for word in _CODE_WORD.findall(text) if word in TABLE)
        problem = Problem(codes or (("QUOTA_EXCEEDED",) if _QUOTA_NAME.search(text) else ()), one_line(text))
    if not problem.codes and not problem.status:
        return None
    if meaning_of(problem) is NO_BUCKET:
        return NO_BUCKET.failure(problem.code, f"the bucket {bucket} of checkpoint.store does not exist")
    failure = failure_of([problem], project=project)
    return None if failure.kind is FailureKind.UNKNOWN else failure


def meaning_of(problem: Problem) -> Meaning | None:
    """Return what one error means; None: nobody has written it down."""
    if problem.status == 401:
        return CREDENTIALS
    known = next((code for code in problem.codes if code in TABLE), "")
    if known and TABLE[known] is QUOTA:
        return _quota(problem)
    if known and known not in TOLD_BY_SENTENCE:
        return TABLE[known]
    told = next((meaning for pattern, meaning in SENTENCES if pattern.search(problem.message)), None)
    if told is not None:
        return told
    if known:
        return TABLE[known]
    if problem.status:
        return SERVER if problem.status >= 500 else STATUS.get(problem.status)
    return _local(problem.code)


def zones_with_room(problem: Problem) -> tuple[str, ...]:
    """Return the zones that Google itself names as having room for this machine."""
    return tuple(zone for zone in re.split(r"[,\s]+", problem.details.get("zonesAvailable", "")) if zone)


def quota_link(metric: str, project: str) -> str:
    """Return the console's page of a quota, where more is asked for."""
    about = f"service=compute.googleapis.com&metric=compute.googleapis.com/{metric.lower()}" if metric else ""
    query = "&".join(part for part in (about, f"project={project}" if project else "") if part)
    return f"{CONSOLE}/iam-admin/quotas" + (f"?{query}" if query else "")


def quota_scope(metric: str) -> Scope:
    """Return how far a quota reaches, by its name."""
    if metric.endswith("_ALL_REGIONS"):
        return Scope.ACCOUNT
    if "GPU" in metric:
        return Scope.FAMILY
    return Scope.MARKET if metric.endswith("CPUS") else Scope.REGION


def missing_permission(problem: Problem) -> str:
    """Return the sentence that names the missing permission, or Google's own."""
    found = _PERMISSION.search(problem.message)
    permission = problem.details.get("permission") or (found.group(1) if found else "")
    if not permission:
        return problem.message
    where = found.group(2) if found else None
    return f"the permission {permission} is missing" + (f" on {where}" if where else "")


def _weight(typed: tuple[Problem, Meaning | None]) -> int:
    meaning = typed[1]
    return -1 if meaning is None else _REACH[meaning.scope]


def _quota(problem: Problem) -> Meaning:
    metric = _metric(problem)
    if metric.endswith("_ALL_REGIONS") or "globally" in problem.message:
        return replace(QUOTA, scope=Scope.ACCOUNT)
    return replace(QUOTA, scope=Scope.ZONE if "in zone" in problem.message else quota_scope(metric))


def _metric(problem: Problem) -> str:
    found = _QUOTA_NAME.search(problem.message)
    return (found.group(1) if found else problem.details.get("metricName", "").rpartition("/")[2]).upper()


def _told(problem: Problem, meaning: Meaning | None) -> str:
    return missing_permission(problem) if meaning is DENIED else problem.message


def _advice(problem: Problem, meaning: Meaning, project: str) -> str:
    if meaning.kind is FailureKind.QUOTA:
        metric = _metric(problem)
        return f"ask for more {metric}".rstrip() + f": {quota_link(metric, project)}"
    if meaning in (DISABLED, BILLING):
        found = _LINK.search(problem.message)
        link = problem.details.get("activationUrl") or problem.details.get("link") or (found.group(0) if found else "")
        return f"{meaning.advice.partition(':')[0]}: {link}" if link else meaning.advice
    return meaning.advice


def _local(name: str) -> Meaning | None:
    """Type an error that never came from Google, by its class."""
    if name in _NO_CREDENTIALS:
        return CREDENTIALS
    return UNREACHED if _NO_ANSWER.search(name) else None
