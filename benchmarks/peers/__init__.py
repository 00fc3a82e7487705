"""Federated averaging with pcfed and with its peers: ``python -m benchmarks.peers``."""
