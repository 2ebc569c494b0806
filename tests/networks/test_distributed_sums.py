# SPDX-License-Identifier: Apache-2.0
"""Two processes: the total with a row minus that with a blank is the row's integers."""

import socket

import torch
import torch.distributed as dist
import torch.multiprocessing as processes

from armijo.data.certified import FINEST_BITS
from armijo.data.process_group import TorchProcessGroup
from armijo.data.query import Rows
from armijo.objectives.module import ModuleObjective
from tests.networks.network_doubles import CROSS_ENTROPY, examples, network

PLACE = 7  # in the first shard


def integers(objective, rows):
    query = objective.gradient_sum(objective.start(), clip=0.3)
    return query.contributions(rows).integers(FINEST_BITS).long()


def one_process(rank, port, results):
    dist.init_process_group(
        "gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2
    )
    X, y = (one[rank::2] for one in examples())
    blank = torch.zeros(len(y), dtype=torch.bool)
    if rank == 0:
        blank[PLACE] = True
    objective, group = ModuleObjective(network(), CROSS_ENTROPY), TorchProcessGroup()
    with_row = group.total(integers(objective, Rows(X, y)))
    without = group.total(integers(objective, Rows(X, y, blank=blank)))
    own = integers(objective, Rows(X, y, blank=~blank))
    results[rank] = bool(torch.equal(with_row - without, own)), bool(own.any())
    dist.destroy_process_group()


def test_two_processes_differ_by_one_certified_vector():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with processes.get_context("spawn").Manager() as manager:
        results = manager.dict()
        processes.spawn(one_process, args=(port, results), nprocs=2)
        assert results[0] == (True, True)  # rank 1 holds no such row
