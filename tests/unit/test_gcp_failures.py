"""The table of Compute Engine's codes, and what is read from Google's answers."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from provisioner.clouds.gcp.answers import Problem, of_answer, of_error
from provisioner.clouds.gcp.errors import error_of, stale
from provisioner.clouds.gcp.failures import TABLE
from provisioner.clouds.gcp.reading import failure_in, failure_of, meaning_of
from provisioner.clouds.meaning import passing
from provisioner.errors import CloudError, Unauthorized, Unreachable
from provisioner.model import Failure, FailureKind, Scope


def typed(code: str, text: str = "no", status: int = 0, **details: str) -> Failure:
    return failure_of([Problem((code,) if code else (), text, status, details)], project="my-project")


SKYPILOT_KNOWS = [
    ("ZONE_RESOURCE_POOL_EXHAUSTED", FailureKind.NO_CAPACITY, Scope.OFFER),
    ("ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS", FailureKind.NO_CAPACITY, Scope.OFFER),
    ("insufficientCapacity", FailureKind.NO_CAPACITY, Scope.OFFER),
    ("UNSUPPORTED_OPERATION", FailureKind.NO_CAPACITY, Scope.OFFER),
    ("RESOURCE_NOT_READY", FailureKind.THROTTLED, Scope.OFFER),
    ("RESOURCE_OPERATION_RATE_EXCEEDED", FailureKind.THROTTLED, Scope.OFFER),
    ("RESOURCE_NOT_FOUND", FailureKind.INVALID, Scope.REGION),
    ("VPC_NOT_FOUND", FailureKind.INVALID, Scope.REGION),
    ("SUBNET_NOT_FOUND_FOR_VPC", FailureKind.INVALID, Scope.REGION),
    ("IAM_PERMISSION_DENIED", FailureKind.UNAUTHORIZED, Scope.ACCOUNT),
]
ITS_HOLES = [
    ("SUBNET_NOT_FOUND", FailureKind.INVALID, Scope.REGION),
    ("VM_MIN_COUNT_NOT_REACHED", FailureKind.NO_CAPACITY, Scope.OFFER),
    ("SERVICE_DISABLED", FailureKind.UNAUTHORIZED, Scope.ACCOUNT),
    ("BILLING_DISABLED", FailureKind.UNAUTHORIZED, Scope.ACCOUNT),
    ("LOCATION_POLICY_VIOLATED", FailureKind.UNAUTHORIZED, Scope.REGION),
    ("rateLimitExceeded", FailureKind.THROTTLED, Scope.REGION),
    ("CONCURRENT_OPERATIONS_QUOTA_EXCEEDED", FailureKind.THROTTLED, Scope.REGION),
    ("resourceNotReady", FailureKind.THROTTLED, Scope.OFFER),
    ("backendError", FailureKind.NETWORK, Scope.REGION),
    ("INTERNAL_ERROR", FailureKind.NETWORK, Scope.REGION),
    ("IP_SPACE_EXHAUSTED", FailureKind.NO_CAPACITY, Scope.REGION),
    ("alreadyExists", FailureKind.NO_CAPACITY, Scope.OFFER),
]


@pytest.mark.parametrize(("code", "kind", "scope"), SKYPILOT_KNOWS + ITS_HOLES)
def test_a_code_has_one_meaning(code: str, kind: FailureKind, scope: Scope) -> None:
    failure = typed(code)
    assert (failure.kind, failure.scope, failure.code) == (kind, scope, code)
    assert failure.ttl_s >= 60


QUOTA = "Quota '{}' exceeded.  Limit: 0.0 {}."


@pytest.mark.parametrize(
    ("metric", "where", "scope"),
    [
        ("NVIDIA_T4_GPUS", "in region us-central1", Scope.FAMILY),
        ("PREEMPTIBLE_NVIDIA_L4_GPUS", "in region us-central1", Scope.FAMILY),
        ("GPUS_PER_GPU_FAMILY", "in region us-central1", Scope.FAMILY),
        ("CPUS", "in region us-central1", Scope.MARKET),
        ("PREEMPTIBLE_CPUS", "in region us-central1", Scope.MARKET),
        ("IN_USE_ADDRESSES", "in region us-central1", Scope.REGION),
        ("SSD_TOTAL_GB", "in region us-central1", Scope.REGION),
        ("LOCAL_SSD_TOTAL_GB", "in zone us-central1-a", Scope.ZONE),
        ("GPUS_ALL_REGIONS", "globally", Scope.ACCOUNT),
        ("CPUS_ALL_REGIONS", "globally", Scope.ACCOUNT),
    ],
)
@pytest.mark.parametrize("code", ["QUOTA_EXCEEDED", "quotaExceeded", "type.googleapis.com/google.rpc.QuotaFailure"])
def test_a_quota_reaches_as_far_as_its_metric(code: str, metric: str, where: str, scope: Scope) -> None:
    failure = typed(code, QUOTA.format(metric, where))
    assert (failure.kind, failure.scope) == (FailureKind.QUOTA, scope)
    assert f"metric=compute.googleapis.com/{metric.lower()}&project=my-project" in failure.advice


def test_a_quota_is_also_known_by_its_details() -> None:
    failure = typed("QUOTA_EXCEEDED", "no", metricName="compute.googleapis.com/gpus_all_regions")
    assert failure.scope is Scope.ACCOUNT


@pytest.mark.parametrize(
    ("code", "status", "text", "kind", "scope"),
    [
        (
            "invalid",
            400,
            (
                "Invalid value for field 'resource.machineType': 'zones/us-west1-c/machineTypes/g2-standard-4'. "
                "Machine type with name 'g2-standard-4' does not exist in zone 'us-west1-c'."
            ),
            FailureKind.NOT_OFFERED,
            Scope.TYPE,
        ),
        (
            "badRequest",
            400,
            "[nvidia-tesla-a100, n1-highmem-8] features are not compatible for creating instance.",
            FailureKind.NOT_OFFERED,
            Scope.TYPE,
        ),
        (
            "notFound",
            404,
            "The resource 'projects/p/zones/us-west1-b/acceleratorTypes/nvidia-tesla-p4' was not found",
            FailureKind.NOT_OFFERED,
            Scope.TYPE,
        ),
        (
            "invalid",
            400,
            "Invalid value for field 'zone': 'us-east1'. Unknown zone.",
            FailureKind.NOT_OFFERED,
            Scope.ZONE,
        ),
        (
            "invalid",
            400,
            (
                "Invalid value for field 'resource.networkInterfaces[0].subnetwork': 'x'. The referenced subnetwork "
                "resource cannot be found."
            ),
            FailureKind.INVALID,
            Scope.REGION,
        ),
        (
            "notFound",
            404,
            (
                "The resource 'projects/p/serviceAccounts/fo-x@p.iam.gserviceaccount.com' of type 'serviceAccount' was "
                "not found."
            ),
            FailureKind.INVALID,
            Scope.REGION,
        ),
        (
            "notFound",
            404,
            "The resource 'projects/deeplearning-platform-release/global/images/family/none' was not found",
            FailureKind.INVALID,
            Scope.ACCOUNT,
        ),
        (
            "invalid",
            400,
            (
                "Invalid value for field 'resource.disks[0].initializeParams.diskSizeGb': '10'. Requested disk size "
                "cannot be smaller than the image size (50 GB)"
            ),
            FailureKind.INVALID,
            Scope.ACCOUNT,
        ),
        ("notFound", 404, "The resource 'projects/nobodys' was not found", FailureKind.UNAUTHORIZED, Scope.ACCOUNT),
        (
            "CONDITION_NOT_MET",
            0,
            "Instance 'x' creation failed: Constraint constraints/compute.vmExternalIpAccess violated for project 1.",
            FailureKind.UNAUTHORIZED,
            Scope.ACCOUNT,
        ),
        (
            "conditionNotMet",
            412,
            "'us-west1' violates constraint 'constraints/gcp.resourceLocations' on the resource 'projects/p/zones/x'.",
            FailureKind.UNAUTHORIZED,
            Scope.REGION,
        ),
        (
            "RESOURCE_POOL_EXHAUSTED",
            0,
            "The global or regional externalIP resource pool is exhausted.",
            FailureKind.NO_CAPACITY,
            Scope.REGION,
        ),
        ("invalid", 400, "Invalid value for field 'resource.labels': ''.", FailureKind.INVALID, Scope.OFFER),
        ("", 502, "<html>Bad Gateway</html>", FailureKind.NETWORK, Scope.REGION),
        ("", 429, "slow down", FailureKind.THROTTLED, Scope.REGION),
        ("required", 401, "Login Required", FailureKind.UNAUTHORIZED, Scope.ACCOUNT),
        ("BRAND_NEW", 409, "Instance failed to start due to preemption.", FailureKind.NO_CAPACITY, Scope.OFFER),
    ],
)
def test_a_code_that_says_nothing_is_judged_by_its_sentence(
    code: str, status: int, text: str, kind: FailureKind, scope: Scope
) -> None:
    failure = typed(code, text, status)
    assert (failure.kind, failure.scope) == (kind, scope)
    assert stale(failure) is ((kind, scope) == (FailureKind.INVALID, Scope.REGION))


def test_an_unknown_code_is_conservative() -> None:
    failure = typed("SOMETHING_NEW_IN_2031")
    assert (failure.kind, failure.scope, failure.ttl_s) == (FailureKind.UNKNOWN, Scope.OFFER, 180)


def test_the_table_says_what_to_do_where_waiting_does_not_help() -> None:
    needs_a_hand = {FailureKind.QUOTA, FailureKind.UNAUTHORIZED, FailureKind.NOT_OFFERED}
    assert not [code for code, meaning in TABLE.items() if meaning.kind in needs_a_hand and not meaning.advice]


def test_of_mixed_answers_the_widest_counts_and_the_others_are_named() -> None:
    zones = {"zonesAvailable": "us-central1-a,us-central1-f"}
    mixed = [
        Problem(("SOMETHING_NEW_IN_2031",), "new"),
        Problem(("VM_MIN_COUNT_NOT_REACHED",), "Requested minimum count of 1 VMs could not be created.", 0, zones),
        Problem(("QUOTA_EXCEEDED",), QUOTA.format("CPUS_ALL_REGIONS", "globally")),
    ]
    for answer in (mixed, mixed[::-1]):
        failure = failure_of(answer)
        assert (failure.kind, failure.scope, failure.code) == (FailureKind.QUOTA, Scope.ACCOUNT, "QUOTA_EXCEEDED")
        assert "VM_MIN_COUNT_NOT_REACHED" in failure.message
        assert failure.elsewhere == ("us-central1-a", "us-central1-f")
    assert failure_of(mixed[:2]).kind is FailureKind.NO_CAPACITY


@pytest.mark.parametrize(
    ("code", "text", "said"),
    [
        (
            "forbidden",
            "Required 'compute.instances.create' permission for 'projects/p/zones/z/instances/i'",
            "the permission compute.instances.create is missing on projects/p/zones/z/instances/i",
        ),
        (
            "PERMISSION_DENIED",
            "Permission 'iam.serviceAccounts.list' denied on resource (or it may not exist).",
            "the permission iam.serviceAccounts.list is missing",
        ),
        (
            "forbidden",
            "Permission iam.serviceAccounts.create is required to perform this operation on project projects/p.",
            "the permission iam.serviceAccounts.create is missing",
        ),
    ],
)
def test_a_missing_permission_is_named(code: str, text: str, said: str) -> None:
    failure = typed(code, text, 403)
    assert (failure.kind, failure.message) == (FailureKind.UNAUTHORIZED, said)
    assert isinstance(error_of(failure), Unauthorized)


def test_a_disabled_api_comes_with_the_link_that_enables_it() -> None:
    link = "https://console.developers.google.com/apis/api/compute.googleapis.com/overview?project=1"
    text = (
        "Compute Engine API has not been used in project 1 before or it is disabled. Enable it by visiting "
        f"{link} then retry. If you enabled this API recently, wait a few minutes."
    )
    for code in ("accessNotConfigured", "SERVICE_DISABLED", "forbidden"):
        assert typed(code, text, 403).advice == f"enable the API: {link}"


def test_what_terraform_says_of_a_refusal_is_typed() -> None:
    text = (
        "gcp-us-central1: Error creating Network: googleapi: Error 403: Required 'compute.networks.create' permission "
        "for 'projects/p/global/networks/n', forbidden"
    )
    failure = failure_in(text, project="p")
    assert failure is not None
    assert (failure.kind, failure.message[:44]) == (
        FailureKind.UNAUTHORIZED,
        "the permission compute.networks.create is mi",
    )
    quota = failure_in("Error waiting for Creating Network: Quota 'NETWORKS' exceeded.  Limit: 5.0 globally.")
    assert quota is not None
    assert (quota.kind, quota.scope) == (FailureKind.QUOTA, Scope.ACCOUNT)
    assert failure_in("no provider could be had") is None


def test_a_missing_bucket_is_named_and_is_not_made_anew() -> None:
    text = (
        'gcp-us-central1: Error retrieving IAM policy for storage bucket "b/my-bucket": googleapi: Error 404: The '
        "specified bucket does not exist., notFound"
    )
    failure = failure_in(text, bucket="my-bucket")
    assert failure is not None
    assert failure.message == "the bucket my-bucket of checkpoint.store does not exist"
    assert "gcloud storage buckets create" in failure.advice
    assert (failure.kind, failure.scope, stale(failure)) == (FailureKind.INVALID, Scope.ACCOUNT, False)


class Call403(Exception):
    """An error shaped like google.api_core's."""

    code = 403
    message = "POST https://compute.googleapis.com/compute/v1/x: Rate Limit Exceeded"
    errors = ({"message": "Rate Limit Exceeded", "domain": "usageLimits", "reason": "rateLimitExceeded"},)
    details = (
        {"@type": "type.googleapis.com/google.rpc.ErrorInfo", "reason": "CONCURRENT_OPERATIONS_QUOTA_EXCEEDED"},
        "a line about credentials that the library adds",
    )


def test_the_most_telling_reason_comes_first() -> None:
    problem = of_error(Call403())[0]
    assert problem.codes == ("CONCURRENT_OPERATIONS_QUOTA_EXCEEDED", "rateLimitExceeded")
    assert (problem.message, problem.status) == ("Rate Limit Exceeded", 403)
    assert passing(failure_of([problem]))


@pytest.mark.parametrize(
    ("name", "kind", "error"),
    [
        ("ConnectionError", FailureKind.NETWORK, Unreachable),
        ("ReadTimeout", FailureKind.NETWORK, Unreachable),
        ("TransportError", FailureKind.NETWORK, Unreachable),
        ("DefaultCredentialsError", FailureKind.UNAUTHORIZED, Unauthorized),
        ("RefreshError", FailureKind.UNAUTHORIZED, Unauthorized),
        ("Surprise", FailureKind.UNKNOWN, CloudError),
    ],
)
def test_no_answer_and_no_credentials_are_told_apart(name: str, kind: FailureKind, error: type[CloudError]) -> None:
    failure = failure_of(of_error(type(name, (Exception,), {})("lost")))
    assert failure.kind is kind
    assert isinstance(error_of(failure), error)
    assert error_of(failure).failure is failure


def test_an_answer_of_iam_is_read() -> None:
    body = {"error": {"code": 403, "message": "denied", "status": "PERMISSION_DENIED", "details": [{"metadata": {"permission": "iam.serviceAccounts.list"}}]}}  # fmt: skip  # noqa: E501
    failure = failure_of(of_answer(403, body))
    assert (failure.kind, failure.message) == (
        FailureKind.UNAUTHORIZED,
        "the permission iam.serviceAccounts.list is missing",
    )
    assert failure_of(of_answer(500, "<html>")).kind is FailureKind.NETWORK


@given(
    codes=st.lists(st.one_of(st.sampled_from(sorted(TABLE)), st.text()), max_size=3),
    text=st.text(),
    status=st.sampled_from([0, 200, 400, 401, 403, 404, 409, 412, 429, 500, 503]),
)
def test_any_answer_becomes_a_failure(codes: list[str], text: str, status: int) -> None:
    problem = Problem(tuple(codes), text, status)
    failure = failure_of([problem])
    meaning: Any = meaning_of(problem)
    assert failure.kind is (FailureKind.UNKNOWN if meaning is None else meaning.kind)
    assert failure.ttl_s >= 60
