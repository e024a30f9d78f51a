"""Benchmarks: what Rota, its peers and the bare database do with the same work, on one machine, in one run."""
