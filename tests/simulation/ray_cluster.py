"""A cluster of two nodes on this machine, in a process of its own, which a test controls.

It prints its address and the id of its head. Every line that it reads replaces the second node;
at the end of its input it stops.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module

from pcfed.simulation.ray_connection import LOCAL_SETTINGS

OPTIONS = {"num_cpus": 1, "object_store_memory": 2**28}


def main() -> None:
    os.environ.update(LOCAL_SETTINGS)  # before Ray is imported, which reads them
    cluster_utils = import_module("ray.cluster_utils")
    options = {**OPTIONS, "include_dashboard": False}
    cluster = cluster_utils.Cluster(initialize_head=True, head_node_args=options)
    node = cluster.add_node(**OPTIONS)
    print(cluster.address, cluster.head_node.node_id, flush=True)
    for _ in sys.stdin:
        cluster.remove_node(node, allow_graceful=False)
        node = cluster.add_node(**OPTIONS)
        print("ready", flush=True)
    cluster.shutdown()


if __name__ == "__main__":
    main()
