"""Where regions are: country, and about where on the globe, for limits by country and for the nearer of two regions.

Cities are those that the clouds name for their regions (read 2026-11); where only a state or country is named, a point
in it. AutoDL names no city for westDC: a point in the north-west of China stands for it.
"""

from __future__ import annotations

from math import asin, cos, radians, sin, sqrt

KM_A_MS = 100.0
"""Light in fibre goes 100 km and back in a millisecond; real lines take half as long again or more."""
_EARTH_KM = 6371.0

_CITIES: dict[str, tuple[str, float, float]] = {
    "Auckland": ("NZ", -36.8, 174.8), "Bahrain": ("BH", 26.1, 50.6), "Bangkok": ("TH", 13.8, 100.5),
    "Beijing": ("CN", 39.9, 116.4), "Berlin": ("DE", 52.5, 13.4), "Calgary": ("CA", 51.0, -114.1),
    "Cape Town": ("ZA", -33.9, 18.4), "Changhua": ("TW", 24.1, 120.5), "Chengdu": ("CN", 30.6, 104.1),
    "Chongqing": ("CN", 29.6, 106.5), "Columbus": ("US", 40.0, -83.0), "Council Bluffs": ("US", 41.3, -95.9),
    "Dallas": ("US", 32.8, -96.8), "Dammam": ("SA", 26.4, 50.1), "Delhi": ("IN", 28.6, 77.2),
    "Doha": ("QA", 25.3, 51.5), "Dubai": ("AE", 25.2, 55.3), "Dublin": ("IE", 53.3, -6.3),
    "Eemshaven": ("NL", 53.4, 6.8), "Foshan": ("CN", 23.0, 113.1), "Frankfurt": ("DE", 50.1, 8.7),
    "Hamina": ("FI", 60.6, 27.2), "Hangzhou": ("CN", 30.3, 120.2), "Hohhot": ("CN", 40.8, 111.7),
    "Hong Kong": ("HK", 22.3, 114.2), "Hyderabad": ("IN", 17.4, 78.5), "Jakarta": ("ID", -6.2, 106.8),
    "Johannesburg": ("ZA", -26.2, 28.0), "Kuala Lumpur": ("MY", 3.1, 101.7), "Las Vegas": ("US", 36.2, -115.1),
    "London": ("GB", 51.5, -0.1), "Los Angeles": ("US", 34.1, -118.2), "Madrid": ("ES", 40.4, -3.7),
    "Melbourne": ("AU", -37.8, 145.0), "Milan": ("IT", 45.5, 9.2), "Moncks Corner": ("US", 33.2, -80.0),
    "Montreal": ("CA", 45.5, -73.6), "Mumbai": ("IN", 19.1, 72.9), "Nanjing": ("CN", 32.1, 118.8),
    "Ningxia": ("CN", 37.5, 105.2), "Oregon": ("US", 45.7, -120.5), "Osaka": ("JP", 34.7, 135.5),
    "Paris": ("FR", 48.9, 2.4), "Phoenix": ("US", 33.4, -112.1), "Potsdam": ("DE", 52.4, 13.1),
    "Queretaro": ("MX", 20.6, -100.4), "Saint-Ghislain": ("BE", 50.5, 3.8), "Salt Lake City": ("US", 40.8, -111.9),
    "San Jose": ("US", 37.4, -121.9), "Santiago": ("CL", -33.4, -70.7), "Sao Paulo": ("BR", -23.5, -46.6),
    "Seoul": ("KR", 37.6, 127.0), "Shanghai": ("CN", 31.2, 121.5), "Shenzhen": ("CN", 22.5, 114.1),
    "Singapore": ("SG", 1.3, 103.8), "Stockholm": ("SE", 59.3, 18.1), "Sydney": ("AU", -33.9, 151.2),
    "Taipei": ("TW", 25.0, 121.5), "Tel Aviv": ("IL", 32.1, 34.8), "Tokyo": ("JP", 35.7, 139.7),
    "Toronto": ("CA", 43.7, -79.4), "Turin": ("IT", 45.1, 7.7), "Virginia": ("US", 39.0, -77.5),
    "Warsaw": ("PL", 52.2, 21.0), "Yangzhou": ("CN", 32.4, 119.4), "Zaragoza": ("ES", 41.7, -0.9),
    "Zurich": ("CH", 47.4, 8.5),
}  # fmt: skip

_REGIONS: dict[str, dict[str, str]] = {
    "aws": {
        "af-south-1": "Cape Town", "ap-east-1": "Hong Kong", "ap-east-2": "Taipei", "ap-northeast-1": "Tokyo",
        "ap-northeast-2": "Seoul", "ap-northeast-3": "Osaka", "ap-south-1": "Mumbai", "ap-south-2": "Hyderabad",
        "ap-southeast-1": "Singapore", "ap-southeast-2": "Sydney", "ap-southeast-3": "Jakarta",
        "ap-southeast-4": "Melbourne", "ap-southeast-5": "Kuala Lumpur", "ap-southeast-6": "Auckland",
        "ap-southeast-7": "Bangkok", "ca-central-1": "Montreal", "ca-west-1": "Calgary", "cn-north-1": "Beijing",
        "cn-northwest-1": "Ningxia", "eu-central-1": "Frankfurt", "eu-central-2": "Zurich",
        "eu-north-1": "Stockholm", "eu-south-1": "Milan", "eu-south-2": "Zaragoza", "eu-west-1": "Dublin",
        "eu-west-2": "London", "eu-west-3": "Paris", "eusc-de-east-1": "Potsdam", "il-central-1": "Tel Aviv",
        "me-central-1": "Dubai", "me-south-1": "Bahrain", "mx-central-1": "Queretaro", "sa-east-1": "Sao Paulo",
        "us-east-1": "Virginia", "us-east-2": "Columbus", "us-gov-east-1": "Columbus", "us-gov-west-1": "Oregon",
        "us-west-1": "San Jose", "us-west-2": "Oregon",
    },
    "gcp": {
        "africa-south1": "Johannesburg", "asia-east1": "Changhua", "asia-east2": "Hong Kong",
        "asia-northeast1": "Tokyo", "asia-northeast2": "Osaka", "asia-northeast3": "Seoul",
        "asia-south1": "Mumbai", "asia-south2": "Delhi", "asia-southeast1": "Singapore",
        "asia-southeast2": "Jakarta", "asia-southeast3": "Bangkok", "australia-southeast1": "Sydney",
        "australia-southeast2": "Melbourne", "europe-central2": "Warsaw", "europe-north1": "Hamina",
        "europe-north2": "Stockholm", "europe-southwest1": "Madrid", "europe-west1": "Saint-Ghislain",
        "europe-west2": "London", "europe-west3": "Frankfurt", "europe-west4": "Eemshaven",
        "europe-west6": "Zurich", "europe-west8": "Milan", "europe-west9": "Paris", "europe-west10": "Berlin",
        "europe-west12": "Turin", "me-central1": "Doha", "me-central2": "Dammam", "me-west1": "Tel Aviv",
        "northamerica-northeast1": "Montreal", "northamerica-northeast2": "Toronto",
        "northamerica-south1": "Queretaro", "southamerica-east1": "Sao Paulo", "southamerica-west1": "Santiago",
        "us-central1": "Council Bluffs", "us-east1": "Moncks Corner", "us-east4": "Virginia",
        "us-east5": "Columbus", "us-south1": "Dallas", "us-west1": "Oregon", "us-west2": "Los Angeles",
        "us-west3": "Salt Lake City", "us-west4": "Las Vegas", "us-west8": "Phoenix",
    },
    "autodl": {
        "beijingDC1": "Beijing", "beijingDC2": "Beijing", "beijingDC3": "Beijing", "beijingDC4": "Beijing",
        "chongqingDC1": "Chongqing", "foshanDC1": "Foshan", "neimengDC1": "Hohhot", "neimengDC3": "Hohhot",
        "westDC2": "Ningxia", "westDC3": "Ningxia", "yangzhouDC1": "Yangzhou",
    },
    "aliyun": {
        "cn-beijing": "Beijing", "cn-chengdu": "Chengdu", "cn-hangzhou": "Hangzhou", "cn-hongkong": "Hong Kong",
        "cn-huhehaote": "Hohhot", "cn-shanghai": "Shanghai", "cn-shenzhen": "Shenzhen", "ap-southeast-1": "Singapore",
    },
    "tencent": {
        "ap-beijing": "Beijing", "ap-chengdu": "Chengdu", "ap-chongqing": "Chongqing", "ap-guangzhou": "Foshan",
        "ap-hongkong": "Hong Kong", "ap-nanjing": "Nanjing", "ap-shanghai": "Shanghai", "ap-singapore": "Singapore",
    },
}  # fmt: skip


def countries() -> tuple[str, ...]:
    """List the countries that have a region, as ISO 3166 codes of two letters."""
    return tuple(sorted({country for country, _, _ in _CITIES.values()}))


def country(cloud: str, region: str) -> str:
    """Return the ISO 3166 code of a region's country, or nothing. All of AutoDL is in China."""
    city = _REGIONS.get(cloud, {}).get(region)
    if city is not None:
        return _CITIES[city][0]
    return "CN" if cloud == "autodl" else ""


def distance_km(cloud: str, region: str, other_cloud: str, other_region: str) -> float | None:
    """Return the way between two regions over the globe in km; None where one of them is not in the table."""
    here, there = (_REGIONS.get(name, {}).get(at) for name, at in ((cloud, region), (other_cloud, other_region)))
    if here is None or there is None:
        return None
    (_, north, east), (_, other_north, other_east) = _CITIES[here], _CITIES[there]
    up, along = radians(other_north - north), radians(other_east - east)
    half = sin(up / 2) ** 2 + cos(radians(north)) * cos(radians(other_north)) * sin(along / 2) ** 2
    return 2 * _EARTH_KM * asin(min(1.0, sqrt(half)))
