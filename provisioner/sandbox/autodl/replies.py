"""What AutoDL says no with, how it pages, and how it reads the fields of a request."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta, timezone
from typing import Any

CHINA = timezone(timedelta(hours=8))


class ApiError(Exception):
    """A logical error: HTTP 200 with this ``code`` and ``msg``."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(f"{code} {message}")
        self.code = code
        self.message = message


def wrong_parameter() -> ApiError:
    """Return the one answer to every bad field [live]."""
    return ApiError("RequestParameterIsWrong", "请求参数错误")


def not_found() -> ApiError:
    """Return the answer to an unknown id [live for Pro, guess for elastic]."""
    return ApiError("RecordNotFoundError", "未查询到相关实例")


def not_entitled() -> ApiError:
    """Return the answer to an account without enterprise verification [live]."""
    return ApiError("BadRequest", "无当前资源访问权限")


def not_verified() -> ApiError:
    """Return the answer to an account without any verification [live]."""
    return ApiError("TORealName", "未完成实名认证,认证后才可使用")


def no_stock() -> ApiError:
    """Return the answer of Pro's create and power_on without a free card [live]."""
    return ApiError("InternalError", "当前算力规格暂无库存, 请修改配置或稍等再试")


def no_money() -> ApiError:
    """Return the answer to an empty wallet [guess]."""
    return ApiError("BadRequest", "账户余额不足")


def bad_token() -> ApiError:
    """Return the answer to a missing or wrong token [guess]."""
    return ApiError("AuthorizeFailed", "登录超时，请重新登录")


def time_text(seconds: float | None) -> str | None:
    """Write Unix seconds as AutoDL does: RFC 3339 in China's time zone."""
    return None if seconds is None else datetime.fromtimestamp(seconds, CHINA).isoformat(timespec="seconds")


def nullable_time(seconds: float | None) -> dict[str, Any]:
    """Write a time as the Pro list does."""
    if seconds is None:
        return {"Time": "0001-01-01T00:00:00Z", "Valid": False}
    return {"Time": time_text(seconds), "Valid": True}


class Fields:
    """The fields of a request, checked as they are read. Each failing check raises the one parameter error."""

    def __init__(self, values: dict[str, Any]) -> None:
        self._values = values

    def text(self, name: str, *, required: bool = True) -> str:
        """Read a string; a required one is not empty."""
        value = self._values.get(name)
        if value is None and not required:
            return ""
        if not isinstance(value, str) or (required and not value):
            raise wrong_parameter()
        return value

    def has(self, name: str) -> bool:
        """Tell whether the field was sent."""
        return self._values.get(name) is not None

    def number(self, name: str, low: int, high: int, default: int | None = None) -> int:
        """Read an integer of a range; without a default it is required."""
        value = self._values.get(name, default)
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise wrong_parameter()
        return value

    def flag(self, name: str) -> bool:
        """Read an optional bool."""
        value = self._values.get(name, False)
        if not isinstance(value, bool):
            raise wrong_parameter()
        return value

    def choice(self, name: str, choices: Sequence[str], default: str | None = None) -> str:
        """Read one of several words."""
        value = self._values.get(name, default)
        if value not in choices:
            raise wrong_parameter()
        return str(value)

    def texts(self, name: str, *, required: bool = True) -> list[str]:
        """Read a list of strings; a required one is not empty."""
        value = self._values.get(name)
        if value is None and not required:
            return []
        if not isinstance(value, list) or not all(isinstance(item, str) and item for item in value):
            raise wrong_parameter()
        if required and not value:
            raise wrong_parameter()
        return value

    def inner(self, name: str) -> Fields:
        """Read an object."""
        value = self._values.get(name)
        if not isinstance(value, dict):
            raise wrong_parameter()
        return Fields(value)

    def span(self, name: str, *, required: bool = True) -> tuple[int, int]:
        """Read ``<name>_from`` and ``<name>_to``. Where they are optional, 0 or nothing is no limit."""
        most = 10**9
        low = self.number(f"{name}_from", 0, most, None if required else 0)
        high = self.number(f"{name}_to", 0, most, None if required else 0)
        if not required and high == 0:
            high = most
        if low > high:
            raise wrong_parameter()
        return low, high


def page(fields: Fields, items: Sequence[Any], show: Callable[[Any], dict[str, Any]], *, pro: bool) -> dict[str, Any]:
    """Cut a page out of ``items``. ``offset``, where it is sent, says where the page begins."""
    index = fields.number("page_index", 1, 10**6)
    size = fields.number("page_size", 1, 10**4)
    offset = fields.number("offset", 0, 10**9, 0)
    first = offset or (index - 1) * size
    answer: dict[str, Any] = {
        "list": [show(item) for item in items[first : first + size]],
        "page_index": index,
        "page_size": size,
        "offset": offset,
        "max_page": -(-len(items) // size),
        "result_total": len(items),
    }
    if pro:
        answer["page"] = index
    return answer
