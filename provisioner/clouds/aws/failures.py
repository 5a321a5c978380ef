"""EC2's error codes, in one table: what kind of failure, how far it reaches, how long it is left alone, what to do.

Sources: the API's list of error codes, Karpenter's eight codes for "cannot be had now", and answers seen through
Terraform. A code that is not here is ``unknown``: it blocks one offer for a short time, is counted and shown.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from provisioner.clouds.meaning import (
    ACCOUNT_TTL_S,
    BRIEF_TTL_S,
    CAPACITY,
    CAPACITY_TTL_S,
    NOT_OFFERED_TTL_S,
    QUOTA_TTL_S,
    REQUEST,
    RESERVED,
    SPENT,
    STALE,
    THROTTLED,
    Meaning,
)
from provisioner.model import FailureKind, Scope

_ON_DEMAND_QUOTA = Meaning(
    FailureKind.QUOTA,
    Scope.FAMILY,
    QUOTA_TTL_S,
    "ask for more at Service Quotas, service ec2: L-DB2E81BA (G and VT, on demand) or L-417A185B (P, on demand)",
)
_SPOT_QUOTA = Meaning(
    FailureKind.QUOTA,
    Scope.FAMILY,
    QUOTA_TTL_S,
    "ask for more at Service Quotas, service ec2: L-3819A6DF (G and VT, spot) or L-7212CCBC (P, spot)",
)
_FLEET_QUOTA = Meaning(
    FailureKind.QUOTA, Scope.MARKET, QUOTA_TTL_S, "the account's spot requests in this region are used up"
)
_OTHER_QUOTA = Meaning(
    FailureKind.QUOTA, Scope.REGION, QUOTA_TTL_S, "a limit of this account in this region is used up"
)
NOT_OFFERED = Meaning(FailureKind.NOT_OFFERED, Scope.TYPE, NOT_OFFERED_TTL_S, "AWS does not offer this type here")
NOT_ON_SPOT = Meaning(
    FailureKind.NOT_OFFERED, Scope.OFFER, NOT_OFFERED_TTL_S, "AWS does not offer this type as spot here"
)
NO_ZONE = Meaning(FailureKind.NOT_OFFERED, Scope.ZONE, NOT_OFFERED_TTL_S, "this account cannot use this zone")
NO_SUBNET = Meaning(FailureKind.NOT_OFFERED, Scope.ZONE, NOT_OFFERED_TTL_S, "set fallback.aws.vpc: own")
DENIED = Meaning(FailureKind.UNAUTHORIZED, Scope.ACCOUNT, ACCOUNT_TTL_S, "add the permission, or use another profile")
_CREDENTIALS = Meaning(FailureKind.UNAUTHORIZED, Scope.ACCOUNT, ACCOUNT_TTL_S, "renew or correct the AWS credentials")
_ACCOUNT = Meaning(FailureKind.UNAUTHORIZED, Scope.ACCOUNT, ACCOUNT_TTL_S, "AWS has not released this account for it")
_OPT_IN = Meaning(
    FailureKind.UNAUTHORIZED, Scope.REGION, ACCOUNT_TTL_S, "enable the region, or accept the image's terms"
)
_SPOT_ROLE = Meaning(
    FailureKind.UNAUTHORIZED,
    Scope.MARKET,
    ACCOUNT_TTL_S,
    "once per account: aws iam create-service-linked-role --aws-service-name spot.amazonaws.com",
)
_SERVER = Meaning(FailureKind.NETWORK, Scope.REGION, BRIEF_TTL_S, "AWS itself has a fault; it passes")
_IMAGE = Meaning(FailureKind.INVALID, Scope.REGION, ACCOUNT_TTL_S, "set fallback.aws.ami to an image of this region")
_NETWORK_SETUP = Meaning(FailureKind.INVALID, Scope.REGION, ACCOUNT_TTL_S, "set fallback.aws.vpc: own")
_DISK = Meaning(FailureKind.INVALID, Scope.REGION, ACCOUNT_TTL_S, "see fallback.aws.disk_gb and the default KMS key")

TABLE: Final[Mapping[str, Meaning]] = {
    # No capacity
    "InsufficientInstanceCapacity": CAPACITY,
    "InsufficientCapacity": CAPACITY,
    "InsufficientHostCapacity": CAPACITY,
    "InsufficientCapacityOnHost": CAPACITY,
    "UnfulfillableCapacity": CAPACITY,
    "InsufficientReservedInstanceCapacity": RESERVED,
    "InsufficientReservedInstancesCapacity": RESERVED,
    "ReservationCapacityExceeded": RESERVED,
    "InsufficientFreeAddressesInSubnet": Meaning(
        FailureKind.NO_CAPACITY, Scope.ZONE, CAPACITY_TTL_S, "the zone's subnet has no free address"
    ),
    "InsufficientVolumeCapacity": Meaning(
        FailureKind.NO_CAPACITY, Scope.ZONE, CAPACITY_TTL_S, "the zone has no room for the disk"
    ),
    # Price
    "SpotMaxPriceTooLow": Meaning(
        FailureKind.PRICE_TOO_LOW, Scope.OFFER, 600.0, "raise fallback.aws.max_price, or wait for the price to fall"
    ),
    # Quota
    "VcpuLimitExceeded": _ON_DEMAND_QUOTA,
    "InstanceLimitExceeded": _ON_DEMAND_QUOTA,
    "MaxSpotInstanceCountExceeded": _SPOT_QUOTA,
    "MaxSpotFleetRequestCountExceeded": _FLEET_QUOTA,
    "MaxFleetCountExceeded": _OTHER_QUOTA,
    "VolumeLimitExceeded": _OTHER_QUOTA,
    "MaxIOPSLimitExceeded": _OTHER_QUOTA,
    "MaxStorageLimitExceeded": _OTHER_QUOTA,
    "NetworkInterfaceLimitExceeded": _OTHER_QUOTA,
    "ResourceLimitExceeded": _OTHER_QUOTA,
    "VpcLimitExceeded": _OTHER_QUOTA,
    "InternetGatewayLimitExceeded": _OTHER_QUOTA,
    # Not offered
    "Unsupported": NOT_OFFERED,
    "UnsupportedOperation": Meaning(
        FailureKind.NOT_OFFERED, Scope.OFFER, NOT_OFFERED_TTL_S, "image, type and market do not go together"
    ),
    "InvalidInstanceType": NOT_OFFERED,
    "InvalidAvailabilityZone": NO_ZONE,
    # Not allowed
    "UnauthorizedOperation": DENIED,
    "AccessDenied": DENIED,
    "AccessDeniedException": DENIED,
    "AuthFailure.ServiceLinkedRoleCreationNotPermitted": _SPOT_ROLE,
    "AuthFailure": _CREDENTIALS,
    "InvalidClientTokenId": _CREDENTIALS,
    "UnrecognizedClientException": _CREDENTIALS,
    "SignatureDoesNotMatch": _CREDENTIALS,
    "IncompleteSignature": _CREDENTIALS,
    "MissingAuthenticationToken": _CREDENTIALS,
    "ExpiredToken": _CREDENTIALS,
    "ExpiredTokenException": _CREDENTIALS,
    "RequestExpired": Meaning(
        FailureKind.UNAUTHORIZED,
        Scope.ACCOUNT,
        ACCOUNT_TTL_S,
        "renew the credentials, and look at this machine's clock",
    ),
    "InvalidAccessKeyId": _CREDENTIALS,
    "OptInRequired": _OPT_IN,
    "PendingVerification": _ACCOUNT,
    "AccountPendingVerification": _ACCOUNT,
    "AccountDisabled": _ACCOUNT,
    "Blocked": _ACCOUNT,
    # Later
    "RequestLimitExceeded": THROTTLED,
    "Throttling": THROTTLED,
    "ThrottlingException": THROTTLED,
    "EC2ThrottledException": THROTTLED,
    "RequestThrottled": THROTTLED,
    "RequestThrottledException": THROTTLED,
    "TooManyRequestsException": THROTTLED,
    "ConcurrentTagAccess": THROTTLED,
    "InternalError": _SERVER,
    "InternalFailure": _SERVER,
    "InternalServerError": _SERVER,
    "ServerInternal": _SERVER,
    "ServiceUnavailable": _SERVER,
    "Unavailable": _SERVER,
    "RequestTimeout": _SERVER,
    # Wrong
    "InvalidLaunchTemplateId.NotFound": STALE,
    "InvalidLaunchTemplateId.VersionNotFound": STALE,
    "InvalidLaunchTemplateName.NotFoundException": STALE,
    "InvalidLaunchTemplateVersion.NotFound": STALE,
    "InvalidSubnetID.NotFound": STALE,
    "InvalidVpcID.NotFound": STALE,
    "InvalidSecurityGroupID.NotFound": STALE,
    "InvalidGroup.NotFound": STALE,
    "InvalidAMIID.NotFound": _IMAGE,
    "InvalidAMIID.Malformed": _IMAGE,
    "InvalidAMIID.Unavailable": _IMAGE,
    "InvalidSnapshot.NotFound": _IMAGE,
    "VPCIdNotSpecified": _NETWORK_SETUP,
    "DefaultVpcDoesNotExist": _NETWORK_SETUP,
    "MissingInput": _NETWORK_SETUP,
    "InvalidBlockDeviceMapping": _DISK,
    "EncryptedVolumesNotSupported": _DISK,
    "InvalidParameter": REQUEST,
    "InvalidParameterValue": REQUEST,
    "InvalidParameterCombination": REQUEST,
    "InvalidInput": REQUEST,
    "InvalidRequest": REQUEST,
    "InvalidUserData.Malformed": REQUEST,
    "InvalidKeyPair.NotFound": REQUEST,
    "InvalidTagKey.Malformed": REQUEST,
    "MissingParameter": REQUEST,
    "UnknownParameter": REQUEST,
    "ValidationError": REQUEST,
    # Client tokens: what they made is looked up first; this is for a token that made nothing, or nothing that lasts
    "IdempotentParameterMismatch": SPENT,
    "IdempotentInstanceTerminated": SPENT,
}

STALE_CODES: Final = frozenset(code for code, meaning in TABLE.items() if meaning is STALE)
"""Codes that say that the substrate is not what we noted."""
SPENT_CODES: Final = frozenset(code for code, meaning in TABLE.items() if meaning is SPENT)
"""Codes about the client token itself."""

NEVER_RAN: Final[Mapping[str, Meaning]] = {
    "Server.InsufficientInstanceCapacity": CAPACITY,
    "Server.InternalError": Meaning(FailureKind.NO_CAPACITY, Scope.OFFER, CAPACITY_TTL_S, "the host failed at launch"),
    "Client.InternalError": _DISK,
    "Client.InvalidSnapshot.NotFound": _IMAGE,
    "Client.VolumeLimitExceeded": _OTHER_QUOTA,
}
"""State reasons that AWS gives only to machines that ended at launch: they never ran."""
