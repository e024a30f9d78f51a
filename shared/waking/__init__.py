"""Wake-ups: a datagram tells a process to look now. Pulling finds everything without them, only later."""
