"""Tokens for task locks: one for each batch, so that what an earlier batch held is never taken for this one's."""

import itertools
import os
import socket
import uuid

_process = f"{socket.gethostname()[:24]}:{os.getpid()}:{uuid.uuid4().hex[:8]}"
_batch = itertools.count(1)


def new_token() -> str:
    """A token no other batch of any scheduler has, readable: host:pid:process:batch."""
    return f"{_process}:{next(_batch)}"
