"""AutoDL's encodings and its error table."""

from __future__ import annotations

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from provisioner.clouds.autodl.errors import TABLE, failure_for, failure_of, refusal
from provisioner.clouds.autodl.models import (
    Balance,
    BlockedHost,
    Container,
    ContainerEvent,
    Deployment,
    DurationPackage,
    GpuStock,
    Image,
    ProInstance,
    ProSnapshot,
)
from provisioner.clouds.autodl.naming import machine_name, read_name
from provisioner.clouds.autodl.units import cuda_code, cuda_version, milli_yuan, moment, number, yuan
from provisioner.errors import CloudError, Unauthorized
from provisioner.model import FailureKind, JobRef, Launch, Money, Scope

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=True) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=12), inner, max_size=3),
    max_leaves=12,
)
READERS = [
    Balance, BlockedHost, Container, ContainerEvent, Deployment, DurationPackage, Image, ProInstance, ProSnapshot,
]  # fmt: skip
FIELDS = [
    "uuid", "name", "status", "assets", "blocked_asset", "payg_price", "usage_info", "template", "info", "created_at",
    "started_at", "dc_list", "gpu_name_set", "memory_size", "memory_size_from", "cuda_v_from", "ssh_port", "balance",
    "root_password", "image_size", "expired_time", "replica_num", "system_init_disk_size",
]  # fmt: skip


@given(st.integers(-(10**12), 10**12))
def test_money_is_thousandths_of_a_yuan_both_ways(milli):
    money = yuan(milli)
    assert money is not None
    assert money.amount == Decimal(milli) / 1000
    assert milli_yuan(money) == milli


def test_foreign_money_is_refused_not_converted():
    with pytest.raises(ValueError, match="CNY"):
        milli_yuan(Money(Decimal(1), "USD"))


@given(st.tuples(st.integers(1, 99), st.integers(0, 9)))
def test_cuda_versions_lose_their_dot_and_get_it_back(version):
    assert cuda_version(cuda_code(version)) == version


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (12, 12), ("12", 12), (12.9, 12), (" 7 ", 7), (True, None), (None, None), ("", None), ("x", None),
        (float("nan"), None), (float("inf"), None), ("1" * 500, None), ([], None), ("1e999999999", None),
    ],
)  # fmt: skip
def test_a_number_comes_in_many_shapes(value, expected):
    assert number(value) == expected


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("1970-01-01T08:00:01+08:00", 1.0),
        ("1970-01-01T08:00:01.123456789+08:00", pytest.approx(1.123456)),
        ({"Time": "1970-01-01T08:00:01+08:00", "Valid": True}, 1.0),
        ({"Time": "0001-01-01T00:00:00Z", "Valid": False}, None),
        ("0001-01-01T00:00:00Z", None),
        ("soon", None),
        (None, None),
        (12, None),
    ],
)
def test_times_are_text_or_nullable_objects(value, expected):
    assert moment(value) == expected


@given(st.sampled_from(READERS), st.dictionaries(st.sampled_from(FIELDS), JSON))
def test_no_answer_of_any_shape_breaks_a_reader(reader, data):
    reader.read(data)


@given(JSON)
def test_no_stock_of_any_shape_breaks_the_reader(data):
    GpuStock.read_all(data)


def test_stock_is_an_array_of_single_key_objects_and_elsewhere_one_object():
    row = {"idle_gpu_num": 2, "total_gpu_num": 8, "chip_corp": "nvidia", "new_field": 1}
    assert GpuStock.read_all([{"L20": row}, {"H800": row}]) == GpuStock.read_all({"L20": row, "H800": row})


def test_spendable_is_assets_less_blocked_plus_vouchers():
    balance = Balance.read({"assets": 52340, "blocked_asset": 1500, "voucher_balance": 1000})
    assert balance.spendable == Money(Decimal("51.84"), "CNY")


def test_secrets_of_a_machine_stay_out_of_repr():
    snapshot = ProSnapshot.read({"root_password": "canary-password", "jupyter_token": "canary-token"})
    container = Container.read({"info": {"root_password": "canary-password"}})
    assert snapshot.root_password == container.root_password == "canary-password"
    assert "canary" not in repr(snapshot) + repr(container)


@pytest.mark.parametrize(
    ("code", "message", "kind", "scope", "word"),
    [
        ("TORealName", "未完成实名认证,认证后才可使用", FailureKind.UNAUTHORIZED, Scope.ACCOUNT, "real-name"),
        ("BadRequest", "无当前资源访问权限", FailureKind.UNAUTHORIZED, Scope.ACCOUNT, "enterprise"),
        ("AuthorizeFailed", "登录超时", FailureKind.UNAUTHORIZED, Scope.ACCOUNT, "AUTODL_TOKEN"),
        ("Whatever", "登陆超时", FailureKind.UNAUTHORIZED, Scope.ACCOUNT, "AUTODL_TOKEN"),
        ("PermissionDenied", "", FailureKind.UNAUTHORIZED, Scope.ACCOUNT, "permission"),
        ("BadRequest", "账户余额不足", FailureKind.QUOTA, Scope.ACCOUNT, "recharge"),
        ("InternalError", "当前算力规格暂无库存, 请修改配置或稍等再试", FailureKind.NO_CAPACITY, Scope.OFFER, "free"),
        ("InternalError", "当前算力规格暂无库存，请修改配置", FailureKind.NO_CAPACITY, Scope.OFFER, "free"),
        ("InstanceError", "该主机空闲GPU不足，主机GPU空闲数量：0 卡", FailureKind.NO_CAPACITY, Scope.OFFER, "host"),
        ("RecordNotFoundError", "未查询到相关实例", FailureKind.INVALID, Scope.OFFER, "know"),
        ("RequestParameterIsWrong", "请求参数错误", FailureKind.INVALID, Scope.OFFER, "westDC3"),
        ("X", "镜像不存在", FailureKind.INVALID, Scope.OFFER, "image_uuid"),
        ("BadRequest", "请在实例关机状态下执行释放操作", FailureKind.INVALID, Scope.OFFER, "shut down"),
        ("InternalError", "保存实例镜像前，请确保实例是关机状态", FailureKind.INVALID, Scope.OFFER, "shut down"),
        ("ServerError", "不支持的启动模式", FailureKind.INVALID, Scope.OFFER, "GPU"),
        ("BrandNew", "什么", FailureKind.UNKNOWN, Scope.OFFER, "know"),
    ],
)
def test_each_refusal_has_kind_scope_and_advice(code, message, kind, scope, word):
    failure = failure_for(code, message)
    assert (failure.kind, failure.scope, failure.code, failure.message) == (kind, scope, code, message)
    assert word in failure.advice
    assert "\n" not in failure.advice


def test_every_row_of_the_table_can_be_reached():
    assert [failure_for(rule.code or "Other", rule.part).advice for rule in TABLE] == [rule.advice for rule in TABLE]


def test_errors_carry_their_failure():
    bad_token = refusal(failure_for("AuthorizeFailed", "登录超时"), call="POST /x")
    assert isinstance(bad_token, Unauthorized)
    assert failure_of(bad_token).kind is FailureKind.UNAUTHORIZED
    assert bad_token.hint
    assert failure_of(CloudError("odd")).kind is FailureKind.UNKNOWN


NAMES = st.from_regex(r"\A[a-z]([a-z0-9-]{0,30}[a-z0-9])?\Z")


@given(NAMES, st.integers(0, 2**32 - 1), st.integers(1, 10**6), st.integers(0, 2**128 - 1))
def test_a_machines_name_gives_back_its_tags(job, uid, epoch, token):
    launch = Launch(JobRef(job, f"{uid:08x}"), epoch, f"{token:032x}", "", 60.0)
    tags = read_name(machine_name(launch))
    assert tags is not None
    assert (tags.job, tags.epoch) == (launch.job, epoch)
    assert launch.token.startswith(tags.token)


@pytest.mark.parametrize(
    "name", ["", "failover-", "my-box", "failover-x-1-e1-00000000", "xfailover-a-00000000-e1-00000000"]
)
def test_a_strangers_name_is_not_ours(name):
    assert read_name(name) is None
