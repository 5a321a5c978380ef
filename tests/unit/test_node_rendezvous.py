"""What the command is told about where its processes meet."""

from __future__ import annotations

import socket

import pytest

from provisioner.node import rendezvous


def test_torchrun_is_told_a_free_port_of_this_machine_and_an_id_with_the_epoch():
    found = rendezvous.variables("llama", 7, ["torchrun", "--nproc-per-node=gpu", "train.py"], {"PATH": "/bin"})
    host, port = found["FAILOVER_RENDEZVOUS"].split(":")
    with socket.socket() as one:
        one.bind((host, int(port)))
    assert found["FAILOVER_NODES"] == found["PET_NNODES"] == "1"
    assert found["FAILOVER_NODE_RANK"] == "0"
    assert found["PET_RDZV_ENDPOINT"] == found["FAILOVER_RENDEZVOUS"]
    assert found["PET_RDZV_ID"] == "llama-7"


def test_a_launcher_that_starts_its_workers_again_gives_them_a_new_store_each_time():
    name = "TORCH_DISABLE_SHARE_RDZV_TCP_STORE"
    command = ["torchrun", "--nproc-per-node=gpu", "--max-restarts=3", "train.py"]
    assert rendezvous.variables("llama", 7, command, {})[name] == "1"
    assert rendezvous.variables("llama", 7, command, {name: "0"})[name] == "0"
    assert name not in rendezvous.variables("llama", 7, ["torchrun", "train.py"], {})


@pytest.mark.parametrize(
    ("command", "environ"),
    [
        (["torchrun", "--nnodes=2", "train.py"], {}),
        (["sh", "-c", "torchrun --master-addr=10.0.0.1 train.py"], {}),
        (["torchrun", "train.py"], {"PET_RDZV_ENDPOINT": "10.0.0.1:29400"}),
        (["torchrun", "train.py"], {"MASTER_ADDR": "10.0.0.1"}),
    ],
)
def test_a_job_that_says_where_it_meets_is_not_contradicted(command, environ):
    found = rendezvous.variables("llama", 7, command, environ)
    assert set(found) == {"FAILOVER_NODES", "FAILOVER_NODE_RANK", "FAILOVER_RENDEZVOUS"}
