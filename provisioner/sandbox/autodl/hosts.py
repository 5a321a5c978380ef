"""The hosts of elastic deployments: cards, CPUs and memory in indivisible units, and who holds them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from provisioner.sandbox.autodl import seed
from provisioner.sandbox.autodl.replies import Fields
from provisioner.sandbox.autodl.world import World


@dataclass(slots=True)
class Host:
    """One host. A unit is one card with its share of CPUs and memory (bytes). ``others`` are other tenants' cards."""

    id: str
    region: str
    card: str
    cards: int
    cuda: int
    price: int
    others: int = 0
    ours: int = 0

    @property
    def idle(self) -> int:
        """Free cards."""
        return self.cards - self.others - self.ours


@dataclass(frozen=True, slots=True)
class Wish:
    """What a container (or a question for stock) asks of a host. Memory in bytes, prices in 1/1000 yuan an hour."""

    regions: tuple[str, ...]
    cards: tuple[str, ...]
    count: int
    cuda: tuple[int, int]
    cpus: tuple[int, int]
    memory: tuple[int, int]
    price: tuple[int, int]

    def fits(self, host: Host) -> bool:
        """Tell whether ``count`` units of this host match, free or not. The price is taken per container [guess]."""
        return (
            (not self.cards or host.card in self.cards)
            and self.count <= host.cards
            and self.cuda[0] <= host.cuda <= self.cuda[1]
            and self.cpus[0] <= self.count * seed.CPUS_PER_CARD <= self.cpus[1]
            and self.memory[0] <= self.count * seed.MEMORY_PER_CARD <= self.memory[1]
            and self.price[0] <= self.count * host.price <= self.price[1]
        )


class Hosts:
    """The inventory, in pools of one card in one region."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.pools: dict[tuple[str, str], list[Host]] = {}
        for region, cards in seed.STOCK.items():
            for card, (idle, total) in cards.items():
                self.set_stock(region, card, idle, total)

    def set_stock(self, region: str, card: str, idle: int, total: int | None = None, *, spread: bool = False) -> None:
        """Let a pool have so many free cards, packed on few hosts or spread over as many as there are.

        What our containers hold stays theirs. The pool grows where it is too small for ``idle``.
        """
        pool = self.pools.setdefault((region, card), [])
        need = max(total or 0, idle + sum(host.ours for host in pool))
        while sum(host.cards for host in pool) < need:
            left = need - sum(host.cards for host in pool)
            pool.append(self._new_host(region, card, min(left, seed.CARDS_PER_HOST), len(pool)))
        free = dict.fromkeys(range(len(pool)), 0)
        while sum(free.values()) < idle:
            open_hosts = [index for index, host in enumerate(pool) if free[index] < host.cards - host.ours]
            for index in open_hosts:
                room = min(pool[index].cards - pool[index].ours - free[index], idle - sum(free.values()))
                free[index] += min(room, 1) if spread else room
        for index, host in enumerate(pool):
            host.others = host.cards - host.ours - free[index]

    def _new_host(self, region: str, card: str, cards: int, index: int) -> Host:
        cuda = seed.HOST_CUDA[index % len(seed.HOST_CUDA)]
        return Host(self._world.hex(10), region, card, cards, cuda, seed.PRICES.get(card, 2000), others=cards)

    def all(self) -> Iterator[Host]:
        """Yield every host."""
        for pool in self.pools.values():
            yield from pool

    def place(self, wish: Wish, blocked: set[str], *, only: str = "") -> Host | None:
        """Return a host with room for all units at once, in the order of the wished regions."""
        for region in wish.regions:
            for (pool_region, _card), pool in self.pools.items():
                if pool_region != region:
                    continue
                for host in pool:
                    if only in ("", host.id) and host.id not in blocked and host.idle >= wish.count and wish.fits(host):
                        return host
        return None

    def stock(self, fields: Fields, _fault: str) -> list[dict[str, dict[str, object]]]:
        """Count free cards one by one, per model [live: array of single-key objects, unknown region: empty]."""
        region = fields.text("region_sign")
        low, high = fields.span("memory_size", required=False)
        wish = Wish(
            regions=(region,),
            cards=tuple(fields.texts("gpu_name_set", required=False)),
            count=1,
            cuda=fields.span("cuda_v", required=False),
            cpus=fields.span("cpu_num", required=False),
            memory=(low * seed.GIB, high * seed.GIB),
            price=fields.span("price", required=False),
        )
        answer: list[dict[str, dict[str, object]]] = []
        for (pool_region, card), pool in self.pools.items():
            fitting = [host for host in pool if wish.fits(host)] if pool_region == region else []
            if fitting:
                counts: dict[str, object] = {
                    "total_gpu_num": sum(host.cards for host in fitting),
                    "idle_gpu_num": sum(host.idle for host in fitting),
                    "chip_corp": "nvidia",
                    "cpu_arch": "x86",
                }
                answer.append({card: counts})
        return answer
