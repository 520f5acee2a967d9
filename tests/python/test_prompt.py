"""The SQL prompt, on a terminal of its own."""

import os
import pty
import re
import select
import time
import unittest

from lake import COMMAND, StoreOfRealRollouts

DEADLINE_SECONDS = 60


class Terminal:
    """A child process on a pseudo-terminal."""

    def __init__(self, arguments, folder):
        self.pid, self.master = pty.fork()
        if self.pid == 0:
            os.environ.update(TERM="xterm", PAGER="cat", HOME=str(folder), XDG_STATE_HOME=str(folder / "state"))
            os.execv(arguments[0], [str(a) for a in arguments])
        self.seen = ""

    def type(self, text):
        os.write(self.master, text.encode())

    def expect(self, pattern):
        """Reads until the pattern has appeared since the last call; gives what came before it."""
        until = time.monotonic() + DEADLINE_SECONDS
        while True:
            found = re.search(pattern, self.seen, re.S)
            if found:
                before, self.seen = self.seen[: found.end()], self.seen[found.end() :]
                return before
            left = until - time.monotonic()
            if left <= 0 or not select.select([self.master], [], [], left)[0]:
                raise AssertionError(f"waited for {pattern!r}, saw {self.seen!r}")
            try:
                chunk = os.read(self.master, 65536)
            except OSError:
                chunk = b""
            if not chunk:
                raise AssertionError(f"ended before {pattern!r}, saw {self.seen!r}")
            self.seen += re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", chunk.decode(errors="replace"))

    def wait(self):
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


class Prompt(StoreOfRealRollouts):
    def test_queries_commands_errors_completion_and_history(self):
        terminal = Terminal([COMMAND, "sql", "--store", self.store], self.path)
        terminal.expect("dressage> ")
        terminal.type("select count(*) as how_many\r")
        terminal.type("from trajectories;\r")
        answer = terminal.expect(r"──.*dressage> ")
        self.assertIn(str(self.report["trajectories_new"]), answer)
        terminal.type("\\d segments\r")
        self.assertIn("n_trained_tokens", terminal.expect(r"finish_reason.*dressage> "))
        terminal.type("select nothing from trajectories;\r")
        terminal.expect(r"error: .*dressage> ")
        terminal.type("\\timing\r")
        terminal.expect(r"timing is on.*dressage> ")
        terminal.type("select count(*) from quarant\t;\r")
        terminal.expect(r"1 row, .* ms.*dressage> ")
        terminal.type("\\q\r")
        self.assertEqual(terminal.wait(), 0)
        history = (self.path / "state" / "dressage" / "history").read_text()
        self.assertIn("from trajectories", history)


if __name__ == "__main__":
    unittest.main()
