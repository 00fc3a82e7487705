"""FedAvg with pcfed and with other packages ("peers"): ``python -m benchmarks.peers``."""
