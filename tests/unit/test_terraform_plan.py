"""Which plans may be applied. What is not known to be harmless is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from provisioner.errors import TerraformError, Unauthorized, Unreachable
from provisioner.terraform import events
from provisioner.terraform.plan import Allow, check, from_json
from provisioner.terraform.render import GCP_NODE_ADDRESS, NODE_ADDRESS

NO_CAPACITY = (
    "creating EC2 Instance: operation error EC2: RunInstances, exceeded maximum number of attempts, 2, https response "
    "error StatusCode: 500, RequestID: x, api error InsufficientInstanceCapacity: We do not have"
)
TEMPLATE = "module.region.aws_launch_template.node"


def plan(*changes, **rest):
    resources = [
        {
            "address": address,
            "type": address.removesuffix("[0]").split(".")[-2],
            "change": {"actions": actions, **({"importing": {"id": "i-1"}} if importing else {})},
        }
        for address, actions, importing in changes
    ]
    return from_json(
        Path("aws-us-east-1/plan.tfplan"), {"format_version": "1.2", "resource_changes": resources, **rest}
    )


NODE_IMPORT = (NODE_ADDRESS, ["no-op"], True)
NODE_DELETE = (NODE_ADDRESS, ["delete"], False)
TEMPLATE_UPDATE = (TEMPLATE, ["update"], False)


@pytest.mark.parametrize(
    ("allow", "changes"),
    [
        (Allow.PREPARE, []),
        (Allow.PREPARE, [(TEMPLATE, ["create"], False), ("module.region.aws_iam_role.node[0]", ["delete"], False)]),
        (Allow.PREPARE, [("module.region.google_compute_network.own[0]", ["no-op"], True)]),
        (Allow.ADOPT, [NODE_IMPORT]),
        (Allow.ADOPT, [(GCP_NODE_ADDRESS, ["no-op"], True)]),
        (Allow.ADOPT, [NODE_IMPORT, TEMPLATE_UPDATE]),
        (Allow.RELEASE, [NODE_DELETE]),
        (Allow.RELEASE, []),
        (Allow.DESTROY, [NODE_DELETE, (TEMPLATE, ["delete"], False)]),
    ],
)
def test_harmless_plans_pass(allow, changes):
    check(plan(*changes), allow)


@pytest.mark.parametrize(
    ("allow", "changes", "named"),
    [
        (Allow.PREPARE, [(NODE_ADDRESS, ["create"], False)], f"create {NODE_ADDRESS}"),
        (Allow.PREPARE, [NODE_DELETE], f"delete {NODE_ADDRESS}"),
        (Allow.PREPARE, [(GCP_NODE_ADDRESS, ["create"], False)], f"create {GCP_NODE_ADDRESS}"),
        (Allow.RELEASE, [(GCP_NODE_ADDRESS, ["delete", "create"], False)], f"replace {GCP_NODE_ADDRESS}"),
        (Allow.PREPARE, [NODE_IMPORT], f"import {NODE_ADDRESS}"),
        (Allow.ADOPT, [(NODE_ADDRESS, ["create"], False)], f"create {NODE_ADDRESS}"),
        (Allow.ADOPT, [(NODE_ADDRESS, ["delete", "create"], True)], f"replace {NODE_ADDRESS}"),
        (Allow.ADOPT, [(NODE_ADDRESS, ["update"], True)], f"import and update {NODE_ADDRESS}"),
        (Allow.ADOPT, [NODE_IMPORT, (TEMPLATE, ["create"], False)], f"create {TEMPLATE}"),
        (Allow.ADOPT, [NODE_IMPORT, (TEMPLATE, ["delete"], False)], f"delete {TEMPLATE}"),
        (Allow.ADOPT, [("aws_instance.other", ["no-op"], True)], "import aws_instance.other"),
        (Allow.ADOPT, [TEMPLATE_UPDATE], "imports 0 machines"),
        (Allow.RELEASE, [NODE_DELETE, TEMPLATE_UPDATE], f"update {TEMPLATE}"),
        (Allow.RELEASE, [(NODE_ADDRESS, ["create", "delete"], False)], f"replace {NODE_ADDRESS}"),
        (Allow.RELEASE, [(NODE_ADDRESS, ["forget"], False)], f"forget {NODE_ADDRESS}"),
        (Allow.DESTROY, [(TEMPLATE, ["update"], False)], f"update {TEMPLATE}"),
    ],
)
def test_r23_r25_other_plans_are_refused_by_name(allow, changes, named):
    with pytest.raises(TerraformError, match=r"^aws-us-east-1: refused to") as caught:
        check(plan(*changes), allow)
    assert named in str(caught.value)
    assert caught.value.hint


@pytest.mark.parametrize(
    "shown",
    [
        {"format_version": "2.0"},
        {"format_version": "1.2", "errored": True},
        {"format_version": "1.2", "deferred_changes": [{}]},
        {
            "format_version": "1.2",
            "resource_changes": [{"address": "a.b", "type": "a", "change": {"actions": ["melt"]}}],
        },
    ],
)
def test_a_plan_that_is_not_understood_is_no_plan(shown):
    with pytest.raises(TerraformError):
        from_json(Path("s/plan.tfplan"), shown)


def test_counts_and_emptiness():
    found = plan(
        NODE_IMPORT, TEMPLATE_UPDATE, ("aws_x.y", ["create", "delete"], False), ("data.aws_z.w", ["read"], False)
    )
    assert (found.adds, found.updates, found.destroys, found.imports) == (1, 1, 1, 1)
    assert plan(("aws_x.y", ["no-op"], False), output_changes={"o": {"actions": ["no-op"]}}).empty
    assert not plan(output_changes={"o": {"actions": ["create"]}}).empty
    gone = {"address": NODE_ADDRESS, "type": "aws_instance", "change": {"actions": ["delete"]}}
    assert not plan(resource_drift=[gone]).empty


@pytest.mark.parametrize(
    ("summary", "kind", "code"),
    [
        (NO_CAPACITY, TerraformError, "InsufficientInstanceCapacity"),
        ("Error launching source instance: VcpuLimitExceeded: You have requested", TerraformError, "VcpuLimitExceeded"),
        ("operation error IAM: CreateRole, api error AccessDenied: not authorized", Unauthorized, "AccessDenied"),
        ("api error UnauthorizedOperation: You are not", Unauthorized, "UnauthorizedOperation"),
        ("No valid credential sources found", Unauthorized, ""),
        ("request send failed, dial tcp 127.0.0.1:1: connect: connection refused", Unreachable, ""),
        ("UnsupportedThing: AccessDeniedness", TerraformError, ""),
        ("googleapi: Error 401: Request had invalid authentication credentials., authError", Unauthorized, ""),
        ("googleapi: Error 403: Required 'compute.networks.create' permission for 'x', forbidden", Unauthorized, ""),
        ("googleapi: Error 403: Quota 'NETWORKS' exceeded. Limit: 5.0 globally., quotaExceeded", TerraformError, ""),
        ("Compute Engine API has not been used, accessNotConfigured", Unauthorized, "accessNotConfigured"),
        ("could not find default credentials. See x", Unauthorized, ""),
    ],
)
def test_errors_are_told_by_their_code_word(summary, kind, code):
    diagnostic = {"summary": summary, "detail": "", "address": "module.region.x"}
    error = events.failure("terraform apply in s", [diagnostic], "", 1, "hint")
    assert type(error) is kind
    assert events.code_in(summary) == code
    assert str(error).startswith("terraform apply in s: module.region.x: ")
    assert "\n" not in str(error)


def test_an_error_without_events_is_read_from_the_box_on_stderr():
    stderr = "╷\n│ \x1b[31mError: \x1b[0mFailed to query\n│ \n│ provider x:\n│ not here\n╵\n"
    error = events.failure("terraform init in s", [], stderr, 1, "")
    assert str(error) == "terraform init in s: Failed to query provider x: not here"
    assert str(events.failure("t", [], "", 3, "")) == "t: ended with status 3 and said nothing"


def test_the_secret_parts_of_a_link_never_reach_an_error():
    link = "https://b.s3/k?X-Amz-Credential=AKIA/1&X-Amz-Signature=abc123&x=1"
    error = events.failure("t", [{"summary": f"GET {link}: 403"}], "", 1, "")
    assert "abc123" not in str(error)
    assert "AKIA" not in str(error)


def test_lines_that_are_no_events_are_passed_over():
    assert events.parse("panic: runtime error") is None
    assert events.parse("{broken") is None
    assert events.parse('{"type": "version"}') == {"type": "version"}
