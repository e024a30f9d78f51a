"""What the tests share: databases, processes, a cluster of them, rows in the state that a test needs."""
