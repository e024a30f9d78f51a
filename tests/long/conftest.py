"""Clusters for these tests."""

from tests.harness.cluster_fixtures import cluster, scheduler, shared_cluster, steered

__all__ = ["cluster", "scheduler", "shared_cluster", "steered"]
