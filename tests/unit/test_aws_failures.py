"""The table of EC2 codes."""

from __future__ import annotations

import pytest
from botocore.exceptions import ClientError, ConnectionClosedError, EndpointConnectionError, NoCredentialsError
from hypothesis import given
from hypothesis import strategies as st

from provisioner.clouds.aws.failures import TABLE
from provisioner.clouds.aws.reading import (
    code_and_message,
    error_of,
    failure_in,
    failure_of,
    failure_of_state,
    missing_permission,
    profile_not_yet_known,
)
from provisioner.errors import CloudError, Unauthorized, Unreachable
from provisioner.model import FailureKind, Scope


def refusal(code: str, message: str = "no", operation: str = "RunInstances") -> ClientError:
    return ClientError({"Error": {"Code": code, "Message": message}}, operation)


CANNOT_BE_HAD_NOW = [
    ("InsufficientInstanceCapacity", FailureKind.NO_CAPACITY, Scope.OFFER),
    ("MaxSpotInstanceCountExceeded", FailureKind.QUOTA, Scope.FAMILY),
    ("VcpuLimitExceeded", FailureKind.QUOTA, Scope.FAMILY),
    ("UnfulfillableCapacity", FailureKind.NO_CAPACITY, Scope.OFFER),
    ("Unsupported", FailureKind.NOT_OFFERED, Scope.TYPE),
    ("InsufficientFreeAddressesInSubnet", FailureKind.NO_CAPACITY, Scope.ZONE),
    ("MaxFleetCountExceeded", FailureKind.QUOTA, Scope.REGION),
    ("ReservationCapacityExceeded", FailureKind.NO_CAPACITY, Scope.OFFER),
]
SEEN_ELSEWHERE = [
    ("SpotMaxPriceTooLow", FailureKind.PRICE_TOO_LOW, Scope.OFFER),
    ("InstanceLimitExceeded", FailureKind.QUOTA, Scope.FAMILY),
    ("MaxSpotFleetRequestCountExceeded", FailureKind.QUOTA, Scope.MARKET),
    ("InsufficientHostCapacity", FailureKind.NO_CAPACITY, Scope.OFFER),
    ("Server.InsufficientInstanceCapacity", FailureKind.NO_CAPACITY, Scope.OFFER),
    ("Client.UnauthorizedOperation", FailureKind.UNAUTHORIZED, Scope.ACCOUNT),
    ("ServerInternal", FailureKind.NETWORK, Scope.REGION),
    ("RequestLimitExceeded", FailureKind.THROTTLED, Scope.REGION),
    ("InternalError", FailureKind.NETWORK, Scope.REGION),
    ("ServiceUnavailable", FailureKind.NETWORK, Scope.REGION),
    ("Unavailable", FailureKind.NETWORK, Scope.REGION),
    ("UnauthorizedOperation", FailureKind.UNAUTHORIZED, Scope.ACCOUNT),
    ("AuthFailure", FailureKind.UNAUTHORIZED, Scope.ACCOUNT),
    ("AuthFailure.ServiceLinkedRoleCreationNotPermitted", FailureKind.UNAUTHORIZED, Scope.MARKET),
    ("OptInRequired", FailureKind.UNAUTHORIZED, Scope.REGION),
    ("PendingVerification", FailureKind.UNAUTHORIZED, Scope.ACCOUNT),
    ("InvalidAMIID.NotFound", FailureKind.INVALID, Scope.REGION),
    ("IdempotentParameterMismatch", FailureKind.NO_CAPACITY, Scope.OFFER),
    ("IdempotentInstanceTerminated", FailureKind.NO_CAPACITY, Scope.OFFER),
]


@pytest.mark.parametrize(("code", "kind", "scope"), CANNOT_BE_HAD_NOW + SEEN_ELSEWHERE)
def test_a_code_has_one_meaning(code: str, kind: FailureKind, scope: Scope) -> None:
    failure = failure_of(refusal(code), "RunInstances")
    assert (failure.kind, failure.scope, failure.code) == (kind, scope, code)
    assert failure.ttl_s >= 60


def test_an_unknown_code_is_conservative() -> None:
    failure = failure_of(refusal("SomethingNewIn2031"), "RunInstances")
    assert (failure.kind, failure.scope, failure.ttl_s) == (FailureKind.UNKNOWN, Scope.OFFER, 180)


def test_the_table_says_what_to_do_where_waiting_does_not_help() -> None:
    needs_a_hand = {FailureKind.QUOTA, FailureKind.UNAUTHORIZED, FailureKind.PRICE_TOO_LOW}
    assert not [code for code, meaning in TABLE.items() if meaning.kind in needs_a_hand and not meaning.advice]


@pytest.mark.parametrize(
    ("text", "kind", "scope"),
    [
        ("Invalid value 'g9.xlarge' for InstanceType.", FailureKind.NOT_OFFERED, Scope.TYPE),
        ("Invalid availability zone: [us-east-1z]", FailureKind.NOT_OFFERED, Scope.ZONE),
        ("Value (2000) for parameter size is invalid.", FailureKind.INVALID, Scope.OFFER),
    ],
)
def test_an_invalid_value_is_judged_by_its_sentence(text: str, kind: FailureKind, scope: Scope) -> None:
    failure = failure_of(refusal("InvalidParameterValue", text), "RunInstances")
    assert (failure.kind, failure.scope) == (kind, scope)


def test_not_supported_on_the_spot_market_leaves_the_other_market_open() -> None:
    failure = failure_of(refusal("Unsupported", "Spot is not supported for this instance type."), "RunInstances")
    assert (failure.kind, failure.scope) == (FailureKind.NOT_OFFERED, Scope.OFFER)


@pytest.mark.parametrize(
    ("text", "code", "kind"),
    [
        (
            (
                "Error: creating EC2 VPC: operation error EC2: CreateVpc, https response error StatusCode: 403, "
                "RequestID: 1, api error UnauthorizedOperation: You are not authorized to perform: ec2:CreateVpc"
            ),
            "UnauthorizedOperation",
            FailureKind.UNAUTHORIZED,
        ),
        (
            (
                "Error launching source instance: InsufficientInstanceCapacity: We currently do not have sufficient "
                "g4dn.xlarge capacity in the Availability Zone you requested (us-east-1a)."
            ),
            "InsufficientInstanceCapacity",
            FailureKind.NO_CAPACITY,
        ),
        (
            "Error creating VPC: VpcLimitExceeded: The maximum number of VPCs has been reached.",
            "VpcLimitExceeded",
            FailureKind.QUOTA,
        ),
    ],
)
def test_a_refusal_is_found_in_what_terraform_says(text: str, code: str, kind: FailureKind) -> None:
    failure = failure_in(text)
    assert failure is not None
    assert (failure.code, failure.kind) == (code, kind)
    if kind is FailureKind.UNAUTHORIZED:
        assert failure.message == "the permission ec2:CreateVpc is missing"


def test_terraforms_own_troubles_are_no_refusals() -> None:
    assert failure_in("Error: Unsupported Terraform Core version") is None
    assert failure_in("Error: Invalid provider configuration: no such file") is None


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            (
                "User: arn:aws:iam::1:user/a is not authorized to perform: iam:PassRole on resource: "
                "arn:aws:iam::1:role/r because no identity-based policy allows the iam:PassRole action"
            ),
            "the permission iam:PassRole is missing on arn:aws:iam::1:role/r",
        ),
        (
            "You are not authorized to perform this operation. Encoded authorization failure message: " + "Ab9-_" * 200,
            "a permission is missing, probably ec2:RunInstances (You are not authorized to perform this operation.)",
        ),
        ("", "a permission is missing, probably ec2:RunInstances (no more is said)"),
    ],
)
def test_a_missing_permission_is_named(text: str, said: str) -> None:
    assert missing_permission(text, "RunInstances") == said
    assert failure_of(refusal("UnauthorizedOperation", text or " "), "RunInstances").kind is FailureKind.UNAUTHORIZED


def test_no_answer_and_no_credentials_are_told_apart() -> None:
    for lost in (EndpointConnectionError(endpoint_url="http://x"), ConnectionClosedError(endpoint_url="http://x")):
        assert failure_of(lost, "RunInstances").kind is FailureKind.NETWORK
        assert isinstance(error_of(failure_of(lost, "RunInstances")), Unreachable)
    none = failure_of(NoCredentialsError(), "RunInstances")
    assert (none.kind, none.scope) == (FailureKind.UNAUTHORIZED, Scope.ACCOUNT)
    assert isinstance(error_of(none), Unauthorized)
    assert type(error_of(failure_of(refusal("Unsupported"), "RunInstances"))) is CloudError


def test_a_state_reason_is_a_refusal_only_for_machines_that_never_ran() -> None:
    late = failure_of_state("Server.InsufficientInstanceCapacity", "Insufficient capacity")
    assert late is not None
    assert late.kind is FailureKind.NO_CAPACITY
    for ordinary in (
        "Client.UserInitiatedShutdown",
        "Server.SpotInstanceTermination",
        "Client.InstanceInitiatedShutdown",
    ):
        assert failure_of_state(ordinary, "") is None


def test_a_profile_that_iam_just_made_is_recognized() -> None:
    text = "Value (arn:x) for parameter iamInstanceProfile.arn is invalid. Invalid IAM Instance Profile ARN"
    assert profile_not_yet_known(refusal("InvalidParameterValue", text))
    assert not profile_not_yet_known(refusal("InvalidParameterValue", "Invalid availability zone"))
    assert not profile_not_yet_known(refusal("UnauthorizedOperation", text))


@given(code=st.one_of(st.sampled_from(sorted(TABLE)), st.text()), text=st.text())
def test_any_answer_becomes_a_failure_of_one_line(code: str, text: str) -> None:
    error = refusal(code, text)
    failure = failure_of(error, "RunInstances")
    assert "\n" not in failure.message
    assert len(failure.message) <= 400
    assert code_and_message(error)[0] == (code or "ClientError")
    assert "\n" not in str(error_of(failure)).replace(code, "")
