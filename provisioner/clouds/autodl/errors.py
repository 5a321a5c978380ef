"""The one table from AutoDL's ``code`` and ``msg`` to a typed failure, and the errors that carry it.

AutoDL publishes no list of errors, and sends different failures under one code: a row matches the code first and then
a part of the message. The messages are recorded from real answers where public sources have them. Rows with a code of
ours (``balance``, ``unscheduled``) are for what we find out before AutoDL says it. A code such as ``InternalError``
tells nobody that cards are sold out, so every row has words for the operator.
"""

from __future__ import annotations

from dataclasses import dataclass

from provisioner.errors import CloudError, Unauthorized, Unreachable
from provisioner.model import Failure, FailureKind, Scope


@dataclass(frozen=True, slots=True)
class Rule:
    """One row: an empty ``code`` or ``part`` matches everything. ``ttl_s``: how long to leave the scope alone."""

    code: str
    part: str
    kind: FailureKind
    scope: Scope
    advice: str
    ttl_s: float = 180.0


_TOKEN = "take a new developer token from AutoDL's console (account, settings) and set AUTODL_TOKEN"  # noqa: S105
_FOR_ALL = 3600.0
BALANCE, UNSCHEDULED, BUSY = "balance", "unscheduled", "HTTP 429"
"""Codes of ours: too little money for an hour; an elastic deployment without a host; too many requests."""

TABLE = (
    Rule(
        "TORealName",
        "",
        FailureKind.UNAUTHORIZED,
        Scope.ACCOUNT,
        "real-name verification is missing: verify this AutoDL account (personal or enterprise) in the console",
        _FOR_ALL,
    ),
    Rule(
        "",
        "无当前资源访问权限",
        FailureKind.UNAUTHORIZED,
        Scope.ACCOUNT,
        "enterprise verification is missing, which elastic deployments need: verify, or set primary.autodl.mode: pro",
        _FOR_ALL,
    ),
    Rule("AuthorizeFailed", "", FailureKind.UNAUTHORIZED, Scope.ACCOUNT, _TOKEN, _FOR_ALL),
    Rule("", "登录超时", FailureKind.UNAUTHORIZED, Scope.ACCOUNT, _TOKEN, _FOR_ALL),
    Rule("", "登陆超时", FailureKind.UNAUTHORIZED, Scope.ACCOUNT, _TOKEN, _FOR_ALL),
    Rule("", "登录失败", FailureKind.UNAUTHORIZED, Scope.ACCOUNT, _TOKEN, _FOR_ALL),
    Rule(
        "PermissionDenied",
        "",
        FailureKind.UNAUTHORIZED,
        Scope.ACCOUNT,
        "this AutoDL account has no permission for that; enterprise verification may be missing",
        _FOR_ALL,
    ),
    Rule(BALANCE, "", FailureKind.QUOTA, Scope.ACCOUNT, "recharge the AutoDL account", 600.0),
    Rule("", "余额", FailureKind.QUOTA, Scope.ACCOUNT, "the AutoDL balance is too low: recharge the account", 600.0),
    Rule("", "库存", FailureKind.NO_CAPACITY, Scope.OFFER, "sold out: AutoDL has no free card of this kind now", 15.0),
    Rule("", "GPU不足", FailureKind.NO_CAPACITY, Scope.OFFER, "sold out: this host has no free card now", 15.0),
    Rule(
        UNSCHEDULED,
        "",
        FailureKind.NO_CAPACITY,
        Scope.OFFER,
        "sold out: stock counts single cards, and idle cards may sit in different hosts",
        60.0,
    ),
    Rule(BUSY, "", FailureKind.THROTTLED, Scope.ACCOUNT, "AutoDL asks us to wait a while", 60.0),
    Rule("RecordNotFoundError", "", FailureKind.INVALID, Scope.OFFER, "AutoDL does not know this machine (any more)"),
    Rule(
        "",
        "镜像不存在",
        FailureKind.INVALID,
        Scope.OFFER,
        "the image is unknown to AutoDL: primary.autodl.image_uuid takes the id of an image, not its name",
    ),
    Rule("", "不存在", FailureKind.INVALID, Scope.OFFER, "AutoDL does not know something that the request names"),
    Rule("", "请在实例关机状态下", FailureKind.INVALID, Scope.OFFER, "the machine must be shut down first"),
    Rule("", "保存实例镜像前", FailureKind.INVALID, Scope.OFFER, "the machine must be shut down first"),
    Rule("", "不支持的启动模式", FailureKind.INVALID, Scope.OFFER, "Pro machines start with a GPU only"),
    Rule(
        "RequestParameterIsWrong",
        "",
        FailureKind.INVALID,
        Scope.OFFER,
        "AutoDL refuses a parameter: check GPU, image and region (Pro takes only westDC3 and beijingDC2)",
    ),
)

_NO_ENTITLEMENT = ("TORealName", "无当前资源访问权限", "PermissionDenied")
NOT_FOUND = "RecordNotFoundError"


def failure_for(code: str, message: str) -> Failure:
    """Type an answer of AutoDL. What the table does not know is UNKNOWN for this offer alone."""
    for rule in TABLE:
        if rule.code in ("", code) and rule.part in message:
            return Failure(rule.kind, rule.scope, code, message, rule.advice, rule.ttl_s)
    return Failure(FailureKind.UNKNOWN, Scope.OFFER, code, message, "AutoDL gave a reason that we do not know yet")


def not_entitled(failure: Failure) -> bool:
    """Tell a good token of an account that lacks a verification from a bad token."""
    return any(word in (failure.code, failure.message) for word in _NO_ENTITLEMENT)


class Refused(CloudError):
    """AutoDL understood and said no. ``failure`` says why."""

    def __init__(self, failure: Failure, *, call: str) -> None:
        """Make one line from the failure and the call (method and path) that met it."""
        super().__init__(f"AutoDL refused {call}: {failure.code} {failure.message}".rstrip(), hint=failure.advice)
        self.failure = failure


class NotFound(Refused):
    """The machine, deployment or container is not known: released, foreign, or never made."""


class RefusedAccess(Unauthorized):
    """The token is missing, wrong or expired, or the account lacks a verification; ``hint`` names which."""

    def __init__(self, failure: Failure, *, call: str) -> None:
        """Make one line from the failure and the call (method and path) that met it."""
        super().__init__(f"AutoDL refused {call}: {failure.code} {failure.message}".rstrip(), hint=failure.advice)
        self.failure = failure


class Doubtful(Unreachable):
    """A write got no usable answer. It may have been carried out: look before doing it again."""


def refusal(failure: Failure, *, call: str) -> Refused | RefusedAccess:
    """Return the error that carries this failure."""
    if failure.kind is FailureKind.UNAUTHORIZED:
        return RefusedAccess(failure, call=call)
    if failure.code == NOT_FOUND:
        return NotFound(failure, call=call)
    return Refused(failure, call=call)


def failure_of(error: CloudError) -> Failure:
    """Return the failure behind any error of this client, for the planner."""
    if isinstance(error, Refused | RefusedAccess):
        return error.failure
    if isinstance(error, Unreachable):
        return Failure(FailureKind.NETWORK, Scope.ACCOUNT, "unreachable", str(error), error.hint, 60.0)
    return Failure(FailureKind.UNKNOWN, Scope.OFFER, type(error).__name__, str(error), error.hint)
