"""Holds back a command until its process group is registered, and then becomes the command. Run as a script.

    gate.py NUMBER ENVIRONMENT PROGRAM [ARGUMENT ...]

NUMBER is one end of a socket pair, whose other end the worker holds. A byte opens the gate. If the worker dies before,
the pair ends, and the command never begins. If the program cannot be run, the gate says why: the error's number.

ENVIRONMENT is a file with the command's environment: ``NAME=value``, each ended by a null byte. The gate does not run
in it: a variable such as LD_LIBRARY_PATH is not meant for the gate, and Python changes LC_CTYPE where LANG is C.

It imports nothing but the standard library, because each command waits for it.
"""

import os
import signal
import sys


def main(gate: int, environment: int, arguments: list[str]) -> None:
    """Wait for the byte, and run the program in place of this process."""
    if not os.read(gate, 1):
        return
    os.set_inheritable(gate, False)
    with open(environment, "rb") as file:
        variables = dict(line.split(b"=", 1) for line in file.read().split(b"\0") if line)
    for number in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores these; a program expects them as they are
        signal.signal(number, signal.SIG_DFL)
    try:
        os.execvpe(arguments[0], arguments, variables)  # noqa: S606 - running commands is the purpose of this node
    except OSError as error:
        os.write(gate, str(error.errno).encode())


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:])
